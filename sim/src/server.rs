//! A simulated server: cores that share their time evenly among requests.
//!
//! Processor sharing is kept in *virtual time*, the work that each request present got so far: with `n` requests on `c`
//! cores it runs at the speed of a core times `min(1, c / n)`. A request that needs `w` of work and comes at virtual time
//! `v` is done at `v + w`, whoever comes or goes meanwhile; so an arrival and a departure cost one step in a heap.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use fairmesh_router::LoadReport;

use crate::scenario::{Answer, Limit, Reports, WarmUp};

/// When nothing is due.
pub(crate) const NEVER: u64 = u64::MAX;
/// CPU shares are taken over this long at least, and twice as long at most, in nanoseconds.
const CPU_WINDOW: u64 = 500_000_000;
/// By how much a late report is late, at least.
const LATE: u64 = 5_000_000_000;

/// Requests that a server answers without working on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failing {
    pub(crate) share: f64,
    pub(crate) answer: Answer,
    pub(crate) takes: u64,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    /// Virtual time, in nanoseconds of an ordinary core.
    work: f64,
    /// When `work` and `busy` were right.
    at: u64,
    /// Work a nanosecond that each request gets now.
    pace: f64,
    /// Cores at work now.
    active: f64,
    /// Time that cores worked, in nanoseconds of a core.
    busy: f64,
    /// By the virtual time at which they are done; the bits of positive floats order as the floats do.
    jobs: BinaryHeap<Reverse<(u64, u32)>>,
    /// When the event of this server that counts is to come.
    pub(crate) due: u64,
    pub(crate) cores: f64,
    /// Work a nanosecond of one core, neighbours left out.
    speed: f64,
    /// What neighbours multiply the speed by.
    slowed: f64,
    /// What events multiply the speed by.
    tuned: f64,
    pub(crate) region: u16,
    /// Whether the process runs.
    pub(crate) up: bool,
    /// Requests in the house, streams left out.
    pub(crate) calls: u32,
    pub(crate) streams: u32,
    /// Requests that hold one of the places of `limit`.
    pub(crate) admitted: u32,
    pub(crate) limit: Option<Limit>,
    /// Waiting for a place: when they came, and which.
    pub(crate) waiting: VecDeque<(u64, u32)>,
    /// Requests that came since the process started.
    served: u32,
    warm_up: Option<WarmUp>,
    pub(crate) failing: Option<Failing>,
    pub(crate) reports: Option<Reports>,
    /// What a server that is stuck or late says, and since when.
    said: [(u64, LoadReport); 2],
    /// Moments with the busy time until then, older first.
    marks: [(u64, f64); 2],
    /// Requests that ever came.
    pub(crate) received: u64,
}

impl Server {
    pub(crate) fn new(cores: f64, speed: f64, region: u16) -> Self {
        Self {
            work: 0.0,
            at: 0,
            pace: speed,
            active: 0.0,
            busy: 0.0,
            jobs: BinaryHeap::new(),
            due: NEVER,
            cores,
            speed,
            slowed: 1.0,
            tuned: 1.0,
            region,
            up: true,
            calls: 0,
            streams: 0,
            admitted: 0,
            limit: None,
            waiting: VecDeque::new(),
            served: 0,
            warm_up: None,
            failing: None,
            reports: None,
            said: [(0, LoadReport::default()); 2],
            marks: [(0, 0.0); 2],
            received: 0,
        }
    }

    pub(crate) fn with(mut self, limit: Option<Limit>, warm_up: Option<WarmUp>) -> Self {
        self.limit = limit;
        self.warm_up = warm_up;
        // Whoever runs when the simulation begins is warm.
        self.served = u32::MAX;
        self
    }

    /// What it could do in a nanosecond if left alone, in nanoseconds of an ordinary core.
    pub(crate) fn capacity(&self) -> f64 {
        self.cores * self.speed * self.tuned
    }

    /// Time that its cores worked until `now`, in nanoseconds of a core.
    pub(crate) fn busy(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.busy
    }

    /// Lets time pass.
    #[inline]
    fn advance(&mut self, now: u64) {
        let passed = (now - self.at) as f64;
        self.at = now;
        self.work += passed * self.pace;
        self.busy += passed * self.active;
    }

    /// After the number of requests or the speed changed.
    #[inline]
    fn settle(&mut self) {
        let n = self.jobs.len() as f64;
        self.active = if n < self.cores { n } else { self.cores };
        let each = if n > self.cores { self.cores / n } else { 1.0 };
        self.pace = self.speed * self.slowed * self.tuned * each;
        if self.jobs.is_empty() {
            // Keeps the numbers small, so that nothing is lost in adding.
            self.work = 0.0;
        }
    }

    /// Begins to work on a request of this much CPU time of an ordinary core.
    #[inline]
    pub(crate) fn work_on(&mut self, flight: u32, cpu: f64, now: u64) {
        self.advance(now);
        let cost = cpu * self.coldness();
        self.jobs.push(Reverse(((self.work + cost).to_bits(), flight)));
        self.settle();
    }

    fn coldness(&mut self) -> f64 {
        let Some(WarmUp { factor, requests }) = self.warm_up else { return 1.0 };
        if self.served >= requests {
            return 1.0;
        }
        self.served += 1;
        let left = 1.0 - f64::from(self.served) / f64::from(requests);
        1.0 + (factor - 1.0) * left
    }

    /// Takes out a request whose work is done.
    #[inline]
    pub(crate) fn take_done(&mut self, now: u64) -> Option<u32> {
        self.advance(now);
        let &Reverse((end, flight)) = self.jobs.peek()?;
        // An event comes on a whole nanosecond, so up to one nanosecond of work may seem to be missing.
        if f64::from_bits(end) > self.work + self.pace {
            return None;
        }
        self.jobs.pop();
        self.settle();
        Some(flight)
    }

    /// When the next request will be done if nothing else happens.
    #[inline]
    pub(crate) fn next_done(&self) -> Option<u64> {
        let &Reverse((end, _)) = self.jobs.peek()?;
        let left = (f64::from_bits(end) - self.work) / self.pace;
        Some(self.at + left.max(0.0).ceil() as u64)
    }

    /// From now on neighbours leave the machine this share of its speed.
    pub(crate) fn slow_to(&mut self, share: f64, now: u64) {
        self.advance(now);
        self.slowed = share;
        self.settle();
    }

    /// Whether neighbours slow it down.
    pub(crate) fn is_slowed(&self) -> bool {
        self.slowed < 1.0
    }

    /// From now on the machine itself is this many times as fast as it was made.
    pub(crate) fn tune_to(&mut self, times: f64, now: u64) {
        self.advance(now);
        self.tuned = times;
        self.settle();
    }

    /// Drops all that it was doing.
    pub(crate) fn die(&mut self, now: u64) {
        self.advance(now);
        self.up = false;
        self.jobs.clear();
        self.waiting.clear();
        self.settle();
        (self.calls, self.streams, self.admitted) = (0, 0, 0);
    }

    /// Starts cold.
    pub(crate) fn start(&mut self, now: u64) {
        self.advance(now);
        self.up = true;
        self.served = 0;
        self.marks = [(now, self.busy); 2];
    }

    /// From now on reports are like this.
    pub(crate) fn report_as(&mut self, reports: Option<Reports>, now: u64) {
        self.reports = reports;
        let load = self.load(now);
        self.said = [(now, load); 2];
    }

    /// What an answer that leaves now says, once its request is no longer counted.
    #[inline]
    pub(crate) fn report(&mut self, now: u64) -> LoadReport {
        self.advance(now);
        match self.reports {
            None => self.load(now),
            Some(how) => self.misreport(how, now),
        }
    }

    #[inline]
    fn load(&mut self, now: u64) -> LoadReport {
        if now - self.marks[1].0 >= CPU_WINDOW {
            self.marks = [self.marks[1], (now, self.busy)];
        }
        let (since, busy) = self.marks[0];
        let passed = now - since;
        let cpu = (passed != 0).then(|| (self.busy - busy) * 1000.0 / (passed as f64 * self.cores));
        LoadReport {
            requests: Some(self.calls),
            // As the layer: it says nothing of streams while there is none.
            streams: (self.streams > 0).then_some(self.streams),
            cpu: cpu.map(|cpu| cpu.min(60_000.0) as u16),
            metric: None,
        }
    }

    fn misreport(&mut self, how: Reports, now: u64) -> LoadReport {
        match how {
            Reports::Missing => LoadReport::default(),
            Reports::Absurd => {
                LoadReport { requests: Some(1_000_000_000), cpu: Some(60_000), ..LoadReport::default() }
            }
            Reports::Idle => LoadReport { requests: Some(0), cpu: Some(0), ..LoadReport::default() },
            Reports::Stuck => self.said[0].1,
            Reports::Late => {
                if now - self.said[1].0 >= LATE {
                    self.said = [self.said[1], (now, self.load(now))];
                }
                self.said[0].1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of the requests of an otherwise idle server, each `(comes at, needs)`.
    fn ends(server: &mut Server, requests: &[(u64, f64)]) -> Vec<u64> {
        let mut ends = vec![0; requests.len()];
        let mut next = 0;
        loop {
            let arrival = requests.get(next).map_or(NEVER, |request| request.0);
            let done = server.next_done().unwrap_or(NEVER);
            if arrival == NEVER && done == NEVER {
                return ends;
            }
            if arrival < done {
                server.work_on(next as u32, requests[next].1, arrival);
                next += 1;
            } else {
                while let Some(flight) = server.take_done(done) {
                    ends[flight as usize] = done;
                }
            }
        }
    }

    #[test]
    fn requests_share_the_cores_evenly() {
        let mut one = Server::new(1.0, 1.0, 0);
        // Alone for 100, then two at half speed: the first needs 100 more of its own, so 200 of time.
        assert_eq!(ends(&mut one, &[(0, 200.0), (100, 300.0)]), [300, 500]);
        assert_eq!(one.busy(600), 500.0);
        let mut two = Server::new(2.0, 1.0, 0);
        assert_eq!(ends(&mut two, &[(0, 200.0), (100, 300.0)]), [200, 400], "a core each");
    }

    #[test]
    fn a_faster_or_slowed_machine_takes_less_or_more_time() {
        let mut fast = Server::new(1.0, 2.0, 0);
        assert_eq!(ends(&mut fast, &[(0, 200.0)]), [100]);
        fast.slow_to(0.25, 1000);
        assert_eq!(ends(&mut fast, &[(1000, 200.0)]), [1400]);
        assert_eq!(fast.busy(2000), 500.0, "a core that a neighbour slows down is busy all the same");
    }

    #[test]
    fn a_cold_process_pays_more_until_it_is_warm() {
        let warm_up = WarmUp { factor: 5.0, requests: 4 };
        let mut server = Server::new(1.0, 1.0, 0).with(None, Some(warm_up));
        assert_eq!(ends(&mut server, &[(0, 100.0)]), [100], "it runs for long already");
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
    fn a_report_says_what_is_under_way_and_how_busy_the_cores_were() {
        let mut server = Server::new(2.0, 1.0, 0);
        server.calls = 3;
        ends(&mut server, &[(0, 400_000_000.0), (0, 1e9)]);
        let report = server.report(1_000_000_000);
        assert_eq!((report.requests, report.cpu), (Some(3), Some(700)));
        server.report_as(Some(Reports::Stuck), 1_000_000_000);
        server.calls = 9;
        assert_eq!(server.report(2_000_000_000).requests, Some(3));
        server.report_as(Some(Reports::Missing), 2_000_000_000);
        assert_eq!(server.report(2_000_000_000), LoadReport::default());
    }
}
