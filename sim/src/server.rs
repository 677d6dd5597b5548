//! A simulated server: cores shared evenly among requests (processor sharing).
//!
//! Processor sharing is tracked in *virtual time*, the work that each present request has received: with `n` requests
//! on `c` cores it advances at the speed of a core times `min(1, c / n)`. A request that needs `w` of work and
//! arrives at virtual time `v` completes at `v + w`, regardless of arrivals and departures meanwhile. An arrival or
//! departure therefore costs one heap operation.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use fairmesh_router::LoadReport;

use crate::scenario::{FailureResponse, Limit, ReportFault, WarmUp};

/// Stands for the time of an event that is not scheduled.
pub(crate) const NEVER: u64 = u64::MAX;
/// Minimum time over which CPU utilisation is averaged, in nanoseconds; the maximum is twice as long.
const CPU_WINDOW: u64 = 500_000_000;
/// Minimum delay of a late report, in nanoseconds.
const REPORT_DELAY: u64 = 5_000_000_000;

/// A failure mode in which a server responds without working.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failing {
    pub(crate) share: f64,
    pub(crate) response: FailureResponse,
    pub(crate) delay: u64,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    /// Virtual time of the processor sharing, in nanoseconds of an ordinary core.
    work: f64,
    /// Time of the last update of `work` and `busy`.
    at: u64,
    /// Work per nanosecond that each request receives at present.
    work_rate: f64,
    /// Number of cores that are busy at present.
    active: f64,
    /// Total busy time, in nanoseconds of a core.
    busy: f64,
    /// Requests, ordered by the virtual time of their completion. The bits of positive floats are ordered like the
    /// floats.
    jobs: BinaryHeap<Reverse<(u64, u32)>>,
    /// Time of this server's next valid completion event.
    pub(crate) completion_at: u64,
    pub(crate) cores: f64,
    /// Number of cores as long as no scenario event changes it.
    usual_cores: f64,
    /// Work per nanosecond that one core does without neighbours.
    speed: f64,
    /// Factor by which neighbours change the speed.
    neighbour_factor: f64,
    /// Factor by which scenario events change the speed.
    speed_factor: f64,
    pub(crate) region: u16,
    /// Whether the process runs.
    pub(crate) up: bool,
    /// Number of requests in flight, excluding streams.
    pub(crate) calls: u32,
    pub(crate) streams: u32,
    /// Number of requests admitted within `limit`.
    pub(crate) admitted: u32,
    pub(crate) limit: Option<Limit>,
    /// Requests that wait for admission: time of arrival and number.
    pub(crate) queue: VecDeque<(u64, u32)>,
    /// Number of requests since the process started.
    served: u32,
    warm_up: Option<WarmUp>,
    pub(crate) failing: Option<Failing>,
    /// Delay that scenario events add to each request, in nanoseconds.
    pub(crate) delay: u64,
    pub(crate) reports: Option<ReportFault>,
    /// Earlier reports with their times, for a server whose reports are stuck or late.
    past_reports: [(u64, LoadReport); 2],
    /// Two samples of time and busy time, the older one first.
    cpu_samples: [(u64, f64); 2],
    /// Number of requests ever received.
    pub(crate) received: u64,
}

impl Server {
    pub(crate) fn new(cores: f64, speed: f64, region: u16) -> Self {
        Self {
            work: 0.0,
            at: 0,
            work_rate: speed,
            active: 0.0,
            busy: 0.0,
            jobs: BinaryHeap::new(),
            completion_at: NEVER,
            cores,
            usual_cores: cores,
            speed,
            neighbour_factor: 1.0,
            speed_factor: 1.0,
            region,
            up: true,
            calls: 0,
            streams: 0,
            admitted: 0,
            limit: None,
            queue: VecDeque::new(),
            served: 0,
            warm_up: None,
            failing: None,
            delay: 0,
            reports: None,
            past_reports: [(0, LoadReport::default()); 2],
            cpu_samples: [(0, 0.0); 2],
            received: 0,
        }
    }

    pub(crate) fn with(mut self, limit: Option<Limit>, warm_up: Option<WarmUp>) -> Self {
        self.limit = limit;
        self.warm_up = warm_up;
        // Processes that run from the start are warm.
        self.served = u32::MAX;
        self
    }

    /// Capacity without neighbours: nanoseconds of an ordinary core per nanosecond.
    pub(crate) fn capacity(&self) -> f64 {
        self.cores * self.speed * self.speed_factor
    }

    /// Total busy time until `now`, in nanoseconds of a core.
    pub(crate) fn busy(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.busy
    }

    /// Advances to `now`.
    #[inline]
    fn advance(&mut self, now: u64) {
        let passed = (now - self.at) as f64;
        self.at = now;
        self.work += passed * self.work_rate;
        self.busy += passed * self.active;
    }

    /// Updates the rates after the number of requests or the speed changed.
    #[inline]
    fn update_rate(&mut self) {
        let n = self.jobs.len() as f64;
        self.active = if n < self.cores { n } else { self.cores };
        let each = if n > self.cores { self.cores / n } else { 1.0 };
        self.work_rate = self.speed * self.neighbour_factor * self.speed_factor * each;
        if self.jobs.is_empty() {
            // Keeps the numbers small, so that additions lose no precision.
            self.work = 0.0;
        }
    }

    /// Starts work on a request that needs `cpu` nanoseconds of an ordinary core.
    #[inline]
    pub(crate) fn start_work(&mut self, request: u32, cpu: f64, now: u64) {
        self.advance(now);
        let cost = cpu * self.cold_start_factor();
        self.jobs.push(Reverse(((self.work + cost).to_bits(), request)));
        self.update_rate();
    }

    fn cold_start_factor(&mut self) -> f64 {
        let Some(WarmUp { factor, requests }) = self.warm_up else { return 1.0 };
        if self.served >= requests {
            return 1.0;
        }
        self.served += 1;
        let left = 1.0 - f64::from(self.served) / f64::from(requests);
        1.0 + (factor - 1.0) * left
    }

    /// Removes a request whose work is complete.
    #[inline]
    pub(crate) fn pop_completed(&mut self, now: u64) -> Option<u32> {
        self.advance(now);
        let &Reverse((end, request)) = self.jobs.peek()?;
        // Events are at whole nanoseconds, so up to one nanosecond of work may seem to be missing.
        if f64::from_bits(end) > self.work + self.work_rate {
            return None;
        }
        self.jobs.pop();
        self.update_rate();
        Some(request)
    }

    /// Time of the next completion if nothing changes until then.
    #[inline]
    pub(crate) fn next_completion(&self) -> Option<u64> {
        let &Reverse((end, _)) = self.jobs.peek()?;
        let left = (f64::from_bits(end) - self.work) / self.work_rate;
        Some(self.at + left.max(0.0).ceil() as u64)
    }

    /// Sets the factor on the speed due to neighbours.
    pub(crate) fn set_neighbour_factor(&mut self, share: f64, now: u64) {
        self.advance(now);
        self.neighbour_factor = share;
        self.update_rate();
    }

    /// Whether neighbours currently slow the machine down.
    pub(crate) fn has_noisy_neighbours(&self) -> bool {
        self.neighbour_factor < 1.0
    }

    /// Sets the factor on the machine's speed.
    pub(crate) fn set_speed_factor(&mut self, times: f64, now: u64) {
        self.advance(now);
        self.speed_factor = times;
        self.update_rate();
    }

    /// Sets the factor on the number of cores.
    pub(crate) fn set_cores_factor(&mut self, times: f64, now: u64) {
        self.advance(now);
        self.cores = self.usual_cores * times;
        self.update_rate();
    }

    /// Drops all requests, as a crash does.
    pub(crate) fn crash(&mut self, now: u64) {
        self.advance(now);
        self.up = false;
        self.jobs.clear();
        self.queue.clear();
        self.update_rate();
        (self.calls, self.streams, self.admitted) = (0, 0, 0);
    }

    /// Starts the process cold.
    pub(crate) fn start(&mut self, now: u64) {
        self.advance(now);
        self.up = true;
        self.served = 0;
        self.cpu_samples = [(now, self.busy); 2];
    }

    /// Sets the fault of the server's load reports.
    pub(crate) fn set_report_fault(&mut self, reports: Option<ReportFault>, now: u64) {
        self.reports = reports;
        let load = self.load(now);
        self.past_reports = [(now, load); 2];
    }

    /// Returns the load report of a response that leaves now. The request of this response is no longer counted.
    #[inline]
    pub(crate) fn report(&mut self, now: u64) -> LoadReport {
        self.advance(now);
        match self.reports {
            None => self.load(now),
            Some(how) => self.false_report(how, now),
        }
    }

    #[inline]
    fn load(&mut self, now: u64) -> LoadReport {
        if now - self.cpu_samples[1].0 >= CPU_WINDOW {
            self.cpu_samples = [self.cpu_samples[1], (now, self.busy)];
        }
        let (since, busy) = self.cpu_samples[0];
        let passed = now - since;
        let cpu = (passed != 0).then(|| (self.busy - busy) * 1000.0 / (passed as f64 * self.cores));
        LoadReport {
            requests: Some(self.calls),
            // As in the server layer, no streams are reported while there are none.
            streams: (self.streams > 0).then_some(self.streams),
            cpu: cpu.map(|cpu| cpu.min(60_000.0) as u16),
            metric: None,
        }
    }

    fn false_report(&mut self, how: ReportFault, now: u64) -> LoadReport {
        match how {
            ReportFault::Missing => LoadReport::default(),
            ReportFault::Absurd => {
                LoadReport { requests: Some(1_000_000_000), cpu: Some(60_000), ..LoadReport::default() }
            }
            ReportFault::Idle => LoadReport { requests: Some(0), cpu: Some(0), ..LoadReport::default() },
            ReportFault::Stuck => self.past_reports[0].1,
            ReportFault::Late => {
                if now - self.past_reports[1].0 >= REPORT_DELAY {
                    self.past_reports = [self.past_reports[1], (now, self.load(now))];
                }
                self.past_reports[0].1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completion times of requests on an otherwise idle server; each request is `(arrival, work)`.
    fn ends(server: &mut Server, requests: &[(u64, f64)]) -> Vec<u64> {
        let mut ends = vec![0; requests.len()];
        let mut next = 0;
        loop {
            let arrival = requests.get(next).map_or(NEVER, |request| request.0);
            let done = server.next_completion().unwrap_or(NEVER);
            if arrival == NEVER && done == NEVER {
                return ends;
            }
            if arrival < done {
                server.start_work(next as u32, requests[next].1, arrival);
                next += 1;
            } else {
                while let Some(request) = server.pop_completed(done) {
                    ends[request as usize] = done;
                }
            }
        }
    }

    #[test]
    fn concurrent_requests_share_simulated_cores_evenly() {
        let mut one = Server::new(1.0, 1.0, 0);
        // The first request is alone for 100, then both run at half speed: it needs 100 more of work, so 200 of time.
        assert_eq!(ends(&mut one, &[(0, 200.0), (100, 300.0)]), [300, 500]);
        assert_eq!(one.busy(600), 500.0);
        let mut two = Server::new(2.0, 1.0, 0);
        assert_eq!(ends(&mut two, &[(0, 200.0), (100, 300.0)]), [200, 400], "a core each");
    }

    #[test]
    fn simulated_machine_speed_scales_service_time() {
        let mut fast = Server::new(1.0, 2.0, 0);
        assert_eq!(ends(&mut fast, &[(0, 200.0)]), [100]);
        fast.set_neighbour_factor(0.25, 1000);
        assert_eq!(ends(&mut fast, &[(1000, 200.0)]), [1400]);
        assert_eq!(fast.busy(2000), 500.0, "a core that a neighbour slows down is busy all the same");
    }

    #[test]
    fn simulated_cold_start_cost_falls_linearly() {
        let warm_up = WarmUp { factor: 5.0, requests: 4 };
        let mut server = Server::new(1.0, 1.0, 0).with(None, Some(warm_up));
        assert_eq!(ends(&mut server, &[(0, 100.0)]), [100], "a running process is warm");
        server.start(1000);
        let times: Vec<u64> = (1..=5)
            .map(|i| {
                let from = i * 10_000;
                ends(&mut server, &[(from, 100.0)])[0] - from
            })
            .collect();
        assert_eq!(times, [400, 300, 200, 100, 100]);
    }

    #[test]
    fn load_report_has_requests_in_flight_and_cpu_utilisation() {
        let mut server = Server::new(2.0, 1.0, 0);
        server.calls = 3;
        ends(&mut server, &[(0, 400_000_000.0), (0, 1e9)]);
        let report = server.report(1_000_000_000);
        assert_eq!((report.requests, report.cpu), (Some(3), Some(700)));
        server.set_report_fault(Some(ReportFault::Stuck), 1_000_000_000);
        server.calls = 9;
        assert_eq!(server.report(2_000_000_000).requests, Some(3));
        server.set_report_fault(Some(ReportFault::Missing), 2_000_000_000);
        assert_eq!(server.report(2_000_000_000), LoadReport::default());
    }
}
