//! How many requests a server takes at one time, learnt from how long they take (ServiceRouter §5).
//!
//! A server that has as many requests as it can work on makes further ones wait, and each of them longer. So the time that
//! requests take, against the time that they take where none waits, says whether there are too many. The limit follows
//! `limit × 2 × least latency ÷ latency + √limit`: requests take about twice their least time where the limit is met, which keeps
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
const MIN_WINDOW: u64 = 100_000_000;
/// A window that takes longer than this to fill says nothing of what is now.
const MAX_WINDOW: u64 = 10_000_000_000;
/// The limit is met where more than one is refused for so many that end.
const SATURATION_DIVISOR: u32 = 20;
/// By how many doublings requests may take longer than the least.
const TOLERANCE: f64 = 1.0;
/// The least and the most that one window may change the limit by.
const GRADIENT_RANGE: (f64, f64) = (0.25, 2.0);
/// By how many doublings the limit must be cut for its effect to stand out from chance.
const DEEP_CUT: f64 = 0.8;
/// What part of a cut should be seen in the time, at least: all of it, where requests wait for each other.
const MIN_EFFECT: f64 = 0.3;
/// What part of the limit is let in while the least time is looked for: below what keeps all workers busy, where the limit
/// is as it should be.
const PROBE_LIMIT_SHARE: f64 = 0.25;
/// After which time of refusing the least time is first looked for; it doubles each time.
const MIN_PROBE_INTERVAL: u64 = 1_000_000_000;
const MAX_PROBE_INTERVAL: u64 = 32_000_000_000;
/// The least time is looked for during no more than this part of the time.
const PROBE_TIME_SHARE: u64 = 20;

/// Bounds of a [`AdaptiveConcurrency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyConfig {
    /// It never falls below this but to look for the least time.
    pub min_limit: u32,
    /// It begins here and never rises above.
    pub max_limit: u32,
    /// Samples without which it does not move.
    pub min_samples: u32,
}

impl Default for ConcurrencyConfig {
    fn default() -> Self {
        Self { min_limit: 4, max_limit: 1024, min_samples: 50 }
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct CompletedRequest {
    /// How long it took, in nanoseconds.
    pub latency: u64,
    /// How many were under way, this one included.
    pub in_flight: u32,
    /// How many were refused since the one before ended.
    pub refused: u32,
    /// When it ended, in nanoseconds of any monotonic clock.
    pub now: u64,
}

/// The limit of one server.
#[derive(Debug)]
pub struct AdaptiveConcurrency {
    config: ConcurrencyConfig,
    seed: u64,
    limit: f64,
    /// The time that requests take where none waits for another, as the binary logarithm of nanoseconds.
    min_latency: Option<f64>,
    window: SampleWindow,
    probes: ProbeSchedule,
    /// The time before the limit was cut deep, and by how many doublings it was.
    last_cut: Option<(f64, f64)>,
}

/// What is known of the requests that ended since the limit last moved.
#[derive(Clone, Copy, Debug, Default)]
struct SampleWindow {
    /// Those that were let in before, and so say nothing of it.
    skip: u32,
    started_at: Option<u64>,
    samples: u32,
    log2_sum: f64,
    /// The most that were under way at one time.
    peak_in_flight: u32,
    refused: u32,
}

/// When the least time is looked for.
#[derive(Debug)]
struct ProbeSchedule {
    interval: u64,
    due_at: Option<u64>,
    /// How many there were, to draw the next by.
    count: u64,
    /// Since when one is under way.
    started_at: Option<u64>,
    last_refusal: u64,
}

impl AdaptiveConcurrency {
    /// A limit that has seen nothing yet, and so is as high as may be. `seed` should differ between servers.
    pub fn new(config: ConcurrencyConfig, seed: u64) -> Self {
        let probes = ProbeSchedule {
            interval: MIN_PROBE_INTERVAL,
            due_at: None,
            count: 0,
            started_at: None,
            last_refusal: 0,
        };
        let limit = f64::from(config.max_limit.max(1));
        Self {
            config,
            seed,
            limit,
            min_latency: None,
            window: SampleWindow::default(),
            probes,
            last_cut: None,
        }
    }

    /// How many may be under way now.
    pub fn limit(&self) -> u32 {
        let limit = if self.probes.started_at.is_some() {
            (self.limit * PROBE_LIMIT_SHARE).max(1.0)
        } else {
            self.limit
        };
        // Between 1 and `most`.
        limit as u32
    }

    /// Learns from a request that failed, or that its caller gave up: only where it had taken too long by then, since it might
    /// have taken longer.
    pub fn record_failure(&mut self, completed: CompletedRequest) {
        let is_too_long = |min: f64| (completed.latency.max(1) as f64).log2() > min + TOLERANCE;
        match self.min_latency.is_some_and(is_too_long) {
            true => self.record_success(completed),
            false => {
                self.abandon_long_probe(completed.now);
                self.window.refused = self.window.refused.saturating_add(completed.refused);
            }
        }
    }

    /// Learns from a request that ended well.
    pub fn record_success(&mut self, completed: CompletedRequest) {
        let CompletedRequest { latency, in_flight, refused, now } = completed;
        self.abandon_long_probe(now);
        let window = &mut self.window;
        window.refused = window.refused.saturating_add(refused);
        if window.skip > 0 {
            window.skip -= 1;
            return;
        }
        let started_at = *window.started_at.get_or_insert(now);
        window.samples += 1;
        window.log2_sum += (latency.max(1) as f64).log2();
        window.peak_in_flight = window.peak_in_flight.max(in_flight);
        let span = now.saturating_sub(started_at);
        if window.samples >= self.config.min_samples && span >= MIN_WINDOW {
            self.adjust(span, now);
            self.window = SampleWindow { skip: in_flight.saturating_sub(1), ..SampleWindow::default() };
        }
    }

    /// Looks no further for the least time where that takes too long: those who were to be refused anyhow have gone, or all fail.
    fn abandon_long_probe(&mut self, now: u64) {
        if self.probes.started_at.is_some_and(|started_at| now.saturating_sub(started_at) > MAX_WINDOW) {
            self.probes.schedule_next(now, Some(MAX_WINDOW), self.seed);
            self.window = SampleWindow::default();
        }
    }

    fn max_limit(&self) -> f64 {
        f64::from(self.config.max_limit.max(1))
    }

    /// Moves the limit by what a full window says.
    fn adjust(&mut self, span: u64, now: u64) {
        let window = self.window;
        let latency = window.log2_sum / f64::from(window.samples);
        if self.probes.started_at.is_some() {
            let is_lower = self.min_latency.is_none_or(|known| latency < known - TOLERANCE / 2.0);
            self.min_latency = Some(latency);
            return self.probes.schedule_next(now, (!is_lower).then_some(span), self.seed);
        }
        let min_latency = *self.min_latency.get_or_insert(latency);
        if span > MAX_WINDOW {
            // Whoever has so few requests is not overloaded, whatever was so once.
            self.limit = self.max_limit();
            return self.update_min_latency(latency, true);
        }
        let gradient = (min_latency + TOLERANCE - latency).exp2().clamp(GRADIENT_RANGE.0, GRADIENT_RANGE.1);
        let peak_in_flight = f64::from(window.peak_in_flight);
        let is_saturated = window.refused > window.samples / SATURATION_DIVISOR;
        let adjusted = match (is_saturated, gradient >= 1.0) {
            (true, _) => self.limit * gradient + self.limit.sqrt(),
            (false, true) if peak_in_flight >= self.limit / 2.0 => self.limit * gradient + self.limit.sqrt(),
            (false, true) => self.limit,
            (false, false) => self.limit.min(peak_in_flight + 2.0 * peak_in_flight.sqrt()),
        };
        if let Some((latency_before, doublings)) = self.last_cut.take()
            && latency_before - latency < doublings * MIN_EFFECT
        {
            // It was in vain: what takes so long is not that there are too many.
            self.probes.due_at = self.probes.due_at.map(|due_at| due_at.min(now));
        }
        let previous_limit = self.limit;
        let min_limit = f64::from(self.config.min_limit).clamp(1.0, self.max_limit());
        self.limit = adjusted.clamp(min_limit, self.max_limit());
        let doublings = (previous_limit / self.limit).log2();
        self.last_cut = (is_saturated && doublings >= DEEP_CUT).then_some((latency, doublings));
        self.update_min_latency(latency, !is_saturated && gradient >= 1.0);
        self.probes.begin_if_due(is_saturated, now, self.seed);
    }

    /// Learns what requests take at least; where some may have waited for others, only that it is less than was thought.
    fn update_min_latency(&mut self, latency: f64, is_uncontended: bool) {
        if let Some(known) = &mut self.min_latency
            && (is_uncontended || latency < *known)
        {
            *known += (latency - *known) / 8.0;
        }
    }
}

impl ProbeSchedule {
    /// Begins to look for the least time where that is due.
    fn begin_if_due(&mut self, refused: bool, now: u64, seed: u64) {
        if refused {
            self.last_refusal = now;
            match self.due_at {
                None => self.due_at = Some(now + self.jittered(self.interval, seed)),
                Some(due_at) if due_at <= now => self.started_at = Some(now),
                Some(_) => {}
            }
        } else if now.saturating_sub(self.last_refusal) > MAX_PROBE_INTERVAL {
            (self.due_at, self.interval) = (None, MIN_PROBE_INTERVAL);
        }
    }

    /// Draws the next time: soon while less is found each time, and otherwise later and later, the more so where it takes long.
    fn schedule_next(&mut self, now: u64, unchanged_after: Option<u64>, seed: u64) {
        self.count += 1;
        self.started_at = None;
        self.interval = unchanged_after.map_or(MIN_PROBE_INTERVAL, |elapsed| {
            (self.interval * 2).min(MAX_PROBE_INTERVAL).max(elapsed.saturating_mul(PROBE_TIME_SHARE))
        });
        self.due_at = Some(now.saturating_add(self.jittered(self.interval, seed)));
    }

    /// Between three and five quarters of it.
    fn jittered(&self, interval: u64, seed: u64) -> u64 {
        let half = (interval / 2).max(1);
        (interval - half / 2).saturating_add(mix64(seed ^ self.count) % half)
    }
}
