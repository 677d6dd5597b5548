//! A simulated caller: when it calls, and what it knows.

use fairmesh_balancer::poll::PollLimiter;
use fairmesh_model::{
    Location,
    arith::{Generator, mix_pair},
};

use crate::{
    chance::{exponential, unit},
    directory::Knowledge,
    scenario::{Callers, RateAt, Requests},
};

/// Rates are constant for this long, in nanoseconds.
const STEP: u64 = 1_000_000_000;

/// What callers of one group share.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) location: Location,
    pub(crate) region: u16,
    /// Mean time between bursts, in nanoseconds, at the unchanged rate.
    gap: f64,
    burst: f64,
    /// What the rate is multiplied by in each step; empty where it never changes.
    rates: Vec<f64>,
    /// With running totals of their shares.
    requests: Vec<(f64, Requests)>,
}

/// One caller.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) kind: u16,
    pub(crate) client: u64,
    pub(crate) known: Knowledge,
    /// When it asks servers for their load. A caller is a process, all of whose parts share what they learn.
    pub(crate) poll_limiter: PollLimiter,
    /// Draws when it calls and for what; nothing that depends on a decision draws from it, so that under every policy
    /// the same requests come at the same times.
    demand: Generator,
    /// Draws the seeds of decisions.
    pub(crate) seeds: Generator,
    /// What its clock is ahead of the true time, in nanoseconds.
    pub(crate) clock: i64,
    /// After how long it learns of changes.
    pub(crate) hears_after: u64,
}

/// What one request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Nanoseconds of an ordinary core.
    pub(crate) cpu: f64,
    /// Nanoseconds of waiting after that.
    pub(crate) wait: u64,
    pub(crate) stream: bool,
}

impl Kind {
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

/// The multiple at a moment: in a straight line between the points around it.
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
    /// `chance` is where its demand starts, and what its decisions differ by from those of another run with the same.
    pub(crate) fn new(kind: u16, client: u64, known: Knowledge, chance: (u64, u64)) -> Self {
        let mut random = Generator::new(chance.0);
        let demand = Generator::new(random.next());
        let seeds = Generator::new(mix_pair(random.next(), chance.1));
        Self {
            kind,
            client,
            known,
            poll_limiter: PollLimiter::default(),
            demand,
            seeds,
            clock: 0,
            hears_after: 0,
        }
    }

    /// When it calls next after `now`, or `None` when its rate stays 0.
    #[inline]
    pub(crate) fn next_call(&mut self, kind: &Kind, now: u64) -> Option<u64> {
        let mut left = exponential(&mut self.demand) * kind.gap;
        if kind.rates.is_empty() {
            return Some(now + left as u64);
        }
        // The time that a process of changing rate has to wait is that in which its rate adds up to what was drawn.
        let mut at = now;
        loop {
            let step = at / STEP;
            let rate = *kind.rates.get(step as usize)?;
            let end = (step + 1) * STEP;
            let most = (end - at) as f64 * rate;
            if left < most {
                return Some(at + (left / rate) as u64);
            }
            left -= most;
            at = end;
        }
    }

    /// How many requests come at once: one and a geometric number.
    #[inline]
    pub(crate) fn burst(&mut self, kind: &Kind) -> u32 {
        let mut n = 1;
        if kind.burst > 1.0 {
            let more = 1.0 - 1.0 / kind.burst;
            while unit(&mut self.demand) < more {
                n += 1;
            }
        }
        n
    }

    /// What the next request needs.
    #[inline]
    pub(crate) fn need(&mut self, kind: &Kind) -> Need {
        let requests = match kind.requests.as_slice() {
            [(_, only)] => only,
            several => {
                let total = several[several.len() - 1].0;
                let point = unit(&mut self.demand) * total;
                let place = several.partition_point(|(end, _)| *end <= point);
                &several[place.min(several.len() - 1)].1
            }
        };
        let cpu = requests.cpu.draw(&mut self.demand);
        let wait = requests.wait.map_or(0, |wait| wait.draw(&mut self.demand) as u64);
        Need { cpu, wait, stream: requests.stream }
    }

    /// What its clock says.
    #[inline]
    pub(crate) fn now(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.clock)
    }
}
