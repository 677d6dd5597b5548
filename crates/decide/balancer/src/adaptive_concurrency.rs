//! The adaptive concurrency limit of a server: how many requests it accepts at once, derived from their latency
//! (ServiceRouter §5).
//!
//! Requests beyond what a server can process wait, and waiting lengthens the latency. So latency relative to latency
//! without queueing shows whether too many requests are in flight. The limit follows `limit × 2 × min latency ÷
//! latency + √limit`. At the limit, requests take about twice their minimum latency, which keeps every worker busy. The square
//! root is headroom to discover whether a higher limit would work.
//!
//! The form is that of Netflix's Gradient2 and of Envoy's adaptive concurrency; the reference latency differs.
//! Gradient2 compares with a long-term mean. A lasting overload becomes part of that mean, so the limit rises without
//! bound. Envoy measures the minimum RTT by admitting three requests at a time every minute, and so refuses requests of
//! a healthy server. Here
//!
//! - the limit falls **only while it is saturated**, that is while it refuses. Longer latency without refusals, such as
//!   from a slow database, is no overload: the limit then falls only to the concurrency in use;
//! - the minimum latency is probed, at a quarter of the limit, only **while requests are refused anyway** or when a
//!   lower limit did not help. Probe times are random, so that the servers of a service do not probe together. If
//!   fewer concurrent requests take as long, there was no overload, and the limit rises again;
//! - **the limit never moves on few samples**, and the result of too few samples is discarded;
//! - latencies are averaged by their logarithms. A factor has the same weight at every latency, and an outlier of a
//!   thousand times the latency counts as only ten doublings.
//!
//! It calculates in floating point, unlike picks: no other implementation has to reproduce the result.
//!
//! Rejected as well: additive increase and multiplicative decrease against a target latency, because an operator
//! would have to know the target and adapt it with every release; and CPU utilisation as the signal, because many
//! servers wait for other resources.

use fairmesh_model::arith::mix64;

/// Minimum duration of a sample window, in nanoseconds.
const MIN_WINDOW: u64 = 100_000_000;
/// Maximum age of a window, in nanoseconds. A window that takes longer to fill is outdated.
const MAX_WINDOW: u64 = 10_000_000_000;
/// Saturation threshold: the limit counts as saturated if more than one request is refused per this many completed
/// requests.
const SATURATION_DIVISOR: u32 = 20;
/// Tolerated excess of the latency over the minimum, in doublings.
const TOLERANCE: f64 = 1.0;
/// Bounds of the factor that one window applies to the limit.
const GRADIENT_RANGE: (f64, f64) = (0.25, 2.0);
/// Minimum size of a cut of the limit, in doublings, for its effect to stand out from noise.
const DEEP_CUT: f64 = 0.8;
/// Minimum part of a cut that must show in the latency. If requests queue at the server, the whole cut shows.
const MIN_EFFECT: f64 = 0.3;
/// Fraction of the limit that is admitted during a probe: too few requests to keep all workers busy at a correct
/// limit.
const PROBE_LIMIT_SHARE: f64 = 0.25;
/// Time for which requests must be refused before the first probe starts, in nanoseconds. It doubles with each probe.
const MIN_PROBE_INTERVAL: u64 = 1_000_000_000;
const MAX_PROBE_INTERVAL: u64 = 32_000_000_000;
/// Reciprocal of the maximum share of the time that probes may take.
const PROBE_TIME_SHARE: u64 = 20;

/// Bounds of an [`AdaptiveConcurrency`] limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyConfig {
    /// Minimum limit. Only a probe goes below it.
    pub min_limit: u32,
    /// Initial limit, which is also the maximum.
    pub max_limit: u32,
    /// Number of samples required before the limit is adjusted.
    pub min_samples: u32,
}

impl Default for ConcurrencyConfig {
    fn default() -> Self {
        Self { min_limit: 4, max_limit: 1024, min_samples: 50 }
    }
}

/// A request that has completed.
#[derive(Clone, Copy, Debug)]
pub struct CompletedRequest {
    /// Latency of the request, in nanoseconds.
    pub latency: u64,
    /// Requests in flight, including this one.
    pub in_flight: u32,
    /// Requests refused since the previous one completed.
    pub refused: u32,
    /// Time of completion, in nanoseconds of any monotonic clock.
    pub now: u64,
}

/// The concurrency limit of one server.
#[derive(Debug)]
pub struct AdaptiveConcurrency {
    config: ConcurrencyConfig,
    seed: u64,
    limit: f64,
    /// Latency of requests without queueing, as the binary logarithm of nanoseconds.
    min_latency: Option<f64>,
    window: SampleWindow,
    probes: ProbeSchedule,
    /// Latency before the last deep cut of the limit, and the size of the cut in doublings.
    last_cut: Option<(f64, f64)>,
}

/// Samples since the limit last moved.
#[derive(Clone, Copy, Debug, Default)]
struct SampleWindow {
    /// Number of requests in flight that were admitted under the previous limit. Their samples are skipped, because
    /// their latency does not reflect the present limit.
    skip: u32,
    started_at: Option<u64>,
    samples: u32,
    log2_sum: f64,
    /// The highest concurrency in the window.
    peak_in_flight: u32,
    refused: u32,
}

/// Schedule of the probes of the minimum latency.
#[derive(Debug)]
struct ProbeSchedule {
    interval: u64,
    due_at: Option<u64>,
    /// Number of probes so far; seeds the next jitter.
    count: u64,
    /// When the present probe began.
    started_at: Option<u64>,
    last_refusal: u64,
}

impl AdaptiveConcurrency {
    /// Creates an adaptive limit without samples, at its maximum. `seed` should differ between servers.
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

    /// The number of requests that may be in flight now.
    pub fn limit(&self) -> u32 {
        let limit = if self.probes.started_at.is_some() {
            (self.limit * PROBE_LIMIT_SHARE).max(1.0)
        } else {
            self.limit
        };
        // The value is between 1 and `max_limit`.
        limit as u32
    }

    /// Records a request that failed or was cancelled. It counts only if it was already too slow, since without the
    /// failure it might have taken even longer.
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

    /// Records a successful request.
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

    /// Ends a probe that takes too long: either the overload has ended, or all requests fail.
    fn abandon_long_probe(&mut self, now: u64) {
        if self.probes.started_at.is_some_and(|started_at| now.saturating_sub(started_at) > MAX_WINDOW) {
            self.probes.schedule_next(now, Some(MAX_WINDOW), self.seed);
            self.window = SampleWindow::default();
        }
    }

    fn max_limit(&self) -> f64 {
        f64::from(self.config.max_limit.max(1))
    }

    /// Adjusts the limit after a full window.
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
            // A server with so few requests is not overloaded, whatever its earlier state.
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
            // The cut had no effect: concurrency is not the cause of the latency.
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

    /// Updates the minimum latency. If requests may have queued, the minimum can only fall.
    fn update_min_latency(&mut self, latency: f64, is_uncontended: bool) {
        if let Some(known) = &mut self.min_latency
            && (is_uncontended || latency < *known)
        {
            *known += (latency - *known) / 8.0;
        }
    }
}

impl ProbeSchedule {
    /// Begins a probe if one is due.
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

    /// Draws the time of the next probe: soon while probes find a lower latency, otherwise with exponential backoff,
    /// and later if probes take long.
    fn schedule_next(&mut self, now: u64, unchanged_after: Option<u64>, seed: u64) {
        self.count += 1;
        self.started_at = None;
        self.interval = unchanged_after.map_or(MIN_PROBE_INTERVAL, |elapsed| {
            (self.interval * 2).min(MAX_PROBE_INTERVAL).max(elapsed.saturating_mul(PROBE_TIME_SHARE))
        });
        self.due_at = Some(now.saturating_add(self.jittered(self.interval, seed)));
    }

    /// Returns a random time between 3/4 and 5/4 of the interval.
    fn jittered(&self, interval: u64, seed: u64) -> u64 {
        let half = (interval / 2).max(1);
        (interval - half / 2).saturating_add(mix64(seed ^ self.count) % half)
    }
}
