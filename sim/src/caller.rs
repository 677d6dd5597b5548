//! A simulated caller: its arrival process and its state.

use fairmesh_balancer::load_poll::PollLimiter;
use fairmesh_model::{
    Location, Region,
    arith::{Generator, mix_pair},
};

use crate::{
    registry::DiscoveredService,
    sampling::{exponential, unit},
    scenario::{Callers, RateAt, Requests},
};

/// Length of the intervals in which rates are constant, in nanoseconds.
const STEP: u64 = 1_000_000_000;

/// Properties shared by the callers of a group.
#[derive(Clone, Debug)]
pub(crate) struct CallerGroup {
    pub(crate) location: Location,
    pub(crate) region: u16,
    /// Mean time between bursts at the initial rate, in nanoseconds.
    gap: f64,
    burst: f64,
    /// Factor that the rate has in each step; empty if the rate never changes.
    rates: Vec<f64>,
    /// Kinds of requests with cumulative shares.
    requests: Vec<(f64, Requests)>,
}

/// One caller.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) group: u16,
    pub(crate) client: u64,
    pub(crate) service: DiscoveredService,
    /// Limits load polls. A caller is a process, whose parts share everything that they learn.
    pub(crate) poll_limiter: PollLimiter,
    /// Random source of arrivals and demands. Nothing that depends on a decision draws from it, so that the same
    /// requests come at the same times under every policy.
    arrivals: Generator,
    /// Random source of the seeds of decisions.
    pub(crate) seeds: Generator,
    /// Offset of the caller's clock from the true time, in nanoseconds.
    pub(crate) clock_offset: i64,
    /// Delay until the caller learns of registry changes, in nanoseconds.
    pub(crate) propagation_delay: u64,
}

/// What a request demands of its server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// CPU time, in nanoseconds of an ordinary core.
    pub(crate) cpu: f64,
    /// Waiting time after the CPU work, in nanoseconds.
    pub(crate) wait: u64,
    pub(crate) stream: bool,
}

impl CallerGroup {
    pub(crate) fn new(callers: &Callers, location: Location, region: u16, duration: u64) -> Self {
        let mut total = 0.0;
        let requests = callers.requests.iter().map(|requests| {
            total += requests.share;
            (total, requests.clone())
        });
        let requests = requests.collect();
        let steps = if callers.rate_over_time.is_empty() { 0 } else { duration / STEP + 1 };
        Self {
            location,
            region,
            gap: 1e9 * callers.burst / callers.rate,
            burst: callers.burst,
            rates: (0..steps).map(|step| rate_at(&callers.rate_over_time, step * STEP)).collect(),
            requests,
        }
    }
}

impl CallerGroup {
    /// Creates the group of a region that makes no calls of its own.
    pub(crate) fn silent(name: Region, region: u16) -> Self {
        let location = Location::in_region(name);
        Self { location, region, gap: 1.0, burst: 1.0, rates: vec![0.0], requests: Vec::new() }
    }
}

/// Returns the factor at a time, interpolated linearly.
fn rate_at(points: &[RateAt], now: u64) -> f64 {
    let after = points.partition_point(|point| point.at.nanos() <= now);
    match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
        (None, Some(first)) => first.times,
        (Some(last), None) => last.times,
        (Some(a), Some(b)) => {
            let part = (now - a.at.nanos()) as f64 / (b.at.nanos() - a.at.nanos()) as f64;
            a.times + (b.times - a.times) * part
        }
        (None, None) => 1.0,
    }
}

impl Caller {
    /// Creates a caller. `seeds` are the seed of arrivals and demands, and a salt by which otherwise equal runs make
    /// different decisions.
    pub(crate) fn new(group: u16, client: u64, service: DiscoveredService, seeds: (u64, u64)) -> Self {
        let mut random = Generator::new(seeds.0);
        let arrivals = Generator::new(random.next());
        let decision_seeds = Generator::new(mix_pair(random.next(), seeds.1));
        Self {
            group,
            client,
            service,
            poll_limiter: PollLimiter::default(),
            arrivals,
            seeds: decision_seeds,
            clock_offset: 0,
            propagation_delay: 0,
        }
    }

    /// The next arrival after `now`, or `None` if its rate stays 0.
    #[inline]
    pub(crate) fn next_call(&mut self, group: &CallerGroup, now: u64) -> Option<u64> {
        let mut left = exponential(&mut self.arrivals) * group.gap;
        if group.rates.is_empty() {
            return Some(now + left as u64);
        }
        // With a changing rate, the interarrival time is the time over which the rate integrates to the drawn number.
        let mut at = now;
        loop {
            let step = at / STEP;
            let rate = *group.rates.get(step as usize)?;
            let end = (step + 1) * STEP;
            let most = (end - at) as f64 * rate;
            if left < most {
                return Some(at + (left / rate) as u64);
            }
            left -= most;
            at = end;
        }
    }

    /// Draws the number of requests in a burst: one plus a geometrically distributed number.
    #[inline]
    pub(crate) fn burst(&mut self, group: &CallerGroup) -> u32 {
        let mut n = 1;
        if group.burst > 1.0 {
            let more = 1.0 - 1.0 / group.burst;
            while unit(&mut self.arrivals) < more {
                n += 1;
            }
        }
        n
    }

    /// Draws the demand of the next request.
    #[inline]
    pub(crate) fn draw_demand(&mut self, group: &CallerGroup) -> Demand {
        let requests = match group.requests.as_slice() {
            [(_, only)] => only,
            several => {
                let total = several[several.len() - 1].0;
                let point = unit(&mut self.arrivals) * total;
                let position = several.partition_point(|(end, _)| *end <= point);
                &several[position.min(several.len() - 1)].1
            }
        };
        let cpu = requests.cpu.sample(&mut self.arrivals);
        let wait = requests.wait.map_or(0, |wait| wait.sample(&mut self.arrivals) as u64);
        Demand { cpu, wait, stream: requests.stream }
    }

    /// Draws the seed of a call tree, which is the same under every planner.
    pub(crate) fn draw_tree_seed(&mut self) -> u64 {
        self.arrivals.next()
    }

    /// Time by the caller's clock.
    #[inline]
    pub(crate) fn now(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.clock_offset)
    }
}
