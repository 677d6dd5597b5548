//! How many requests a server takes at one time, learnt from how long they take (ServiceRouter §5).
//!
//! A server that has as many requests as it can work on makes further ones wait, and each of them longer. So the time that
//! requests take, against the time that they take where none waits, says whether there are too many. The limit follows
//! `limit × 2 × least time ÷ time + √limit`: requests take about twice their least time where the limit is met, which keeps
//! every worker busy, and the root is room to find out whether more would go.
//!
//! The form is that of Netflix's Gradient2 and of Envoy's adaptive concurrency; what is compared is not. Gradient2 compares with
//! a mean over long, which an overload that lasts becomes part of, so that the limit rises until it is none. Envoy measures
//! the least time by letting three requests in at a time every minute, and so refuses some although all is well. Here
//!
//! - the limit falls **only while it is met**, that is while it refuses. Requests that take longer while everybody is let in, as
//!   when a database is slow, are no overload: then it only comes down to what is there;
//! - the least time is looked for, at a quarter of the limit, only **while it refuses anyhow**, at times drawn by chance, so
//!   that the servers of a service do not all do it at once, or where a lower limit did not help. Where fewer requests at a time
//!   turn out to take as long, it was no overload, and the limit rises again;
//! - **nothing moves on few samples**, and what too few samples said is forgotten;
//! - times are averaged by their logarithms, so that one that takes a thousand times as long among many counts as ten doublings
//!   and no more, and a factor is the same factor wherever it begins.
//!
//! It calculates in floating point, unlike picks: nobody else has to come to the same number.
//!
//! Rejected besides: additive increase and multiplicative decrease by a latency to stay below, which somebody would have to
//! know and to change with every release; and the CPU as the measure, since many servers wait for something else.

use fairmesh_model::arith::mix64;

/// For how long requests are looked at before the limit moves, at least, in nanoseconds.
const WINDOW: u64 = 100_000_000;
/// A window that takes longer than this to fill says nothing of what is now.
const LONGEST_WINDOW: u64 = 10_000_000_000;
/// The limit is met where more than one is refused for so many that end.
const MET: u32 = 20;
/// By how many doublings requests may take longer than the least.
const TOLERANCE: f64 = 1.0;
/// The least and the most that one window may change the limit by.
const GRADIENT: (f64, f64) = (0.25, 2.0);
/// By how many doublings the limit must be cut for its effect to stand out from chance.
const DEEP: f64 = 0.8;
/// What part of a cut should be seen in the time, at least: all of it, where requests wait for each other.
const EFFECT: f64 = 0.3;
/// What part of the limit is let in while the least time is looked for: below what keeps all workers busy, where the limit
/// is as it should be.
const PROBE: f64 = 0.25;
/// After which time of refusing the least time is first looked for; it doubles each time.
const FIRST_PROBE: u64 = 1_000_000_000;
const LAST_PROBE: u64 = 32_000_000_000;
/// The least time is looked for during no more than this part of the time.
const PROBE_SHARE: u64 = 20;

/// Bounds of a [`Concurrency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyRule {
    /// It never falls below this but to look for the least time.
    pub least: u32,
    /// It begins here and never rises above.
    pub most: u32,
    /// Samples without which it does not move.
    pub min_samples: u32,
}

impl Default for ConcurrencyRule {
    fn default() -> Self {
        Self { least: 4, most: 1024, min_samples: 50 }
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How long it took, in nanoseconds.
    pub took: u64,
    /// How many were under way, this one included.
    pub under_way: u32,
    /// How many were refused since the one before ended.
    pub refused: u32,
    /// When it ended, in nanoseconds of any monotonic clock.
    pub now: u64,
}

/// The limit of one server.
#[derive(Debug)]
pub struct Concurrency {
    rule: ConcurrencyRule,
    seed: u64,
    limit: f64,
    /// The time that requests take where none waits for another, as the binary logarithm of nanoseconds.
    least_time: Option<f64>,
    window: Window,
    probes: Probes,
    /// The time before the limit was cut deep, and by how many doublings it was.
    cut: Option<(f64, f64)>,
}

/// What is known of the requests that ended since the limit last moved.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Those that were let in before, and so say nothing of it.
    skip: u32,
    began: Option<u64>,
    samples: u32,
    sum: f64,
    /// The most that were under way at one time.
    peak: u32,
    refused: u32,
}

/// When the least time is looked for.
#[derive(Debug)]
struct Probes {
    wait: u64,
    due: Option<u64>,
    /// How many there were, to draw the next by.
    made: u64,
    /// Since when one is under way.
    since: Option<u64>,
    last_refused: u64,
}

impl Concurrency {
    /// A limit that has seen nothing yet, and so is as high as may be. `seed` should differ between servers.
    pub fn new(rule: ConcurrencyRule, seed: u64) -> Self {
        let probes = Probes { wait: FIRST_PROBE, due: None, made: 0, since: None, last_refused: 0 };
        let limit = f64::from(rule.most.max(1));
        Self { rule, seed, limit, least_time: None, window: Window::default(), probes, cut: None }
    }

    /// How many may be under way now.
    pub fn limit(&self) -> u32 {
        let limit = if self.probes.since.is_some() { (self.limit * PROBE).max(1.0) } else { self.limit };
        // Between 1 and `most`.
        limit as u32
    }

    /// Learns from a request that failed, or that its caller gave up: only where it had taken too long by then, since it might
    /// have taken longer.
    pub fn gave_up(&mut self, ended: Ended) {
        let too_long = |least: f64| (ended.took.max(1) as f64).log2() > least + TOLERANCE;
        match self.least_time.is_some_and(too_long) {
            true => self.ended(ended),
            false => {
                self.end_long_probe(ended.now);
                self.window.refused = self.window.refused.saturating_add(ended.refused);
            }
        }
    }

    /// Learns from a request that ended well.
    pub fn ended(&mut self, ended: Ended) {
        let Ended { took, under_way, refused, now } = ended;
        self.end_long_probe(now);
        let window = &mut self.window;
        window.refused = window.refused.saturating_add(refused);
        if window.skip > 0 {
            window.skip -= 1;
            return;
        }
        let began = *window.began.get_or_insert(now);
        window.samples += 1;
        window.sum += (took.max(1) as f64).log2();
        window.peak = window.peak.max(under_way);
        let span = now.saturating_sub(began);
        if window.samples >= self.rule.min_samples && span >= WINDOW {
            self.judge(span, now);
            self.window = Window { skip: under_way.saturating_sub(1), ..Window::default() };
        }
    }

    /// Looks no further for the least time where that takes too long: those who were to be refused anyhow have gone, or all fail.
    fn end_long_probe(&mut self, now: u64) {
        if self.probes.since.is_some_and(|since| now.saturating_sub(since) > LONGEST_WINDOW) {
            self.probes.next(now, Some(LONGEST_WINDOW), self.seed);
            self.window = Window::default();
        }
    }

    fn most(&self) -> f64 {
        f64::from(self.rule.most.max(1))
    }

    /// Moves the limit by what a full window says.
    fn judge(&mut self, span: u64, now: u64) {
        let window = self.window;
        let time = window.sum / f64::from(window.samples);
        if self.probes.since.is_some() {
            let is_news = self.least_time.is_none_or(|known| time < known - TOLERANCE / 2.0);
            self.least_time = Some(time);
            return self.probes.next(now, (!is_news).then_some(span), self.seed);
        }
        let least_time = *self.least_time.get_or_insert(time);
        if span > LONGEST_WINDOW {
            // Whoever has so few requests is not overloaded, whatever was so once.
            self.limit = self.most();
            return self.learn(time, true);
        }
        let gradient = (least_time + TOLERANCE - time).exp2().clamp(GRADIENT.0, GRADIENT.1);
        let peak = f64::from(window.peak);
        let is_met = window.refused > window.samples / MET;
        let moved = match (is_met, gradient >= 1.0) {
            (true, _) => self.limit * gradient + self.limit.sqrt(),
            (false, true) if peak >= self.limit / 2.0 => self.limit * gradient + self.limit.sqrt(),
            (false, true) => self.limit,
            (false, false) => self.limit.min(peak + 2.0 * peak.sqrt()),
        };
        if let Some((before, by)) = self.cut.take()
            && before - time < by * EFFECT
        {
            // It was in vain: what takes so long is not that there are too many.
            self.probes.due = self.probes.due.map(|due| due.min(now));
        }
        let limit = self.limit;
        let least = f64::from(self.rule.least).clamp(1.0, self.most());
        self.limit = moved.clamp(least, self.most());
        let by = (limit / self.limit).log2();
        self.cut = (is_met && by >= DEEP).then_some((time, by));
        self.learn(time, !is_met && gradient >= 1.0);
        self.probes.see(is_met, now, self.seed);
    }

    /// Learns what requests take at least; where some may have waited for others, only that it is less than was thought.
    fn learn(&mut self, time: f64, alone: bool) {
        if let Some(known) = &mut self.least_time
            && (alone || time < *known)
        {
            *known += (time - *known) / 8.0;
        }
    }
}

impl Probes {
    /// Begins to look for the least time where that is due.
    fn see(&mut self, refused: bool, now: u64, seed: u64) {
        if refused {
            self.last_refused = now;
            match self.due {
                None => self.due = Some(now + self.jittered(self.wait, seed)),
                Some(due) if due <= now => self.since = Some(now),
                Some(_) => {}
            }
        } else if now.saturating_sub(self.last_refused) > LAST_PROBE {
            (self.due, self.wait) = (None, FIRST_PROBE);
        }
    }

    /// Draws the next time: soon while less is found each time, and otherwise later and later, the more so where it takes long.
    fn next(&mut self, now: u64, in_vain: Option<u64>, seed: u64) {
        self.made += 1;
        self.since = None;
        self.wait = in_vain.map_or(FIRST_PROBE, |took| {
            (self.wait * 2).min(LAST_PROBE).max(took.saturating_mul(PROBE_SHARE))
        });
        self.due = Some(now.saturating_add(self.jittered(self.wait, seed)));
    }

    /// Between three and five quarters of it.
    fn jittered(&self, wait: u64, seed: u64) -> u64 {
        let half = (wait / 2).max(1);
        (wait - half / 2).saturating_add(mix64(seed ^ self.made) % half)
    }
}
