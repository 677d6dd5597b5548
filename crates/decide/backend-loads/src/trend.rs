//! Recent and usual rates as exponentially weighted means.

use std::{ops::AddAssign, time::Duration};

use crate::replica_report::ServiceCounts;

/// Half-life of the recent mean: short enough to detect an overload within seconds.
const RECENT_HALF_LIFE: Duration = Duration::from_secs(2);
/// Half-life of the usual mean: long enough that minutes of growth do not become usual before an alert starts.
const USUAL_HALF_LIFE: Duration = Duration::from_secs(60);

/// Recent and usual value of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trend {
    /// Mean of the last seconds.
    pub recent: f64,
    /// Mean of the last minutes.
    pub usual: f64,
}

impl Trend {
    /// Starts a trend: the first value is also the usual one.
    pub(crate) const fn first(value: f64) -> Self {
        Self { recent: value, usual: value }
    }

    /// Adds the value of an interval of length `span`. The usual value is frozen while `is_alert`.
    pub(crate) fn take(&mut self, value: f64, span: Duration, is_alert: bool) {
        self.recent += (value - self.recent) * weight(span, RECENT_HALF_LIFE);
        if !is_alert {
            self.usual += (value - self.usual) * weight(span, USUAL_HALF_LIFE);
        }
    }

    /// Increase of the recent over the usual value; 0 if the recent value is lower.
    pub fn growth(&self) -> f64 {
        (self.recent - self.usual).max(0.0)
    }
}

impl AddAssign for Trend {
    fn add_assign(&mut self, other: Self) {
        self.recent += other.recent;
        self.usual += other.usual;
    }
}

/// Converts a count over `span` to a rate per second.
pub(crate) fn per_second(count: u64, span: Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

/// Weight of the newest value in the mean.
fn weight(span: Duration, half_life: Duration) -> f64 {
    1.0 - 0.5_f64.powf(span.as_secs_f64() / half_life.as_secs_f64())
}

/// Trends of one service, in events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceTrend {
    /// Requests with a response, errors included.
    pub requests: Trend,
    /// Responses with a status of 4xx or 5xx.
    pub errors: Trend,
    /// New connections to the service's virtual address.
    pub connections: Trend,
}

impl ServiceTrend {
    /// Starts the trends: the first counts are also the usual ones.
    pub(crate) fn first(counts: ServiceCounts, span: Duration) -> Self {
        let first = |count| Trend::first(per_second(count, span));
        Self {
            requests: first(counts.requests),
            errors: first(counts.errors),
            connections: first(counts.connections),
        }
    }

    /// Adds the counts of an interval of length `span`.
    pub(crate) fn take(&mut self, counts: ServiceCounts, span: Duration, is_alert: bool) {
        let ServiceCounts { requests, errors, connections } = counts;
        self.requests.take(per_second(requests, span), span, is_alert);
        self.errors.take(per_second(errors, span), span, is_alert);
        self.connections.take(per_second(connections, span), span, is_alert);
    }

    /// Whether the service was idle long enough to be removed.
    pub(crate) fn is_quiet(&self) -> bool {
        const QUIET: f64 = 0.01;
        [self.requests, self.connections].iter().all(|one| one.recent < QUIET && one.usual < QUIET)
    }
}

impl AddAssign for ServiceTrend {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.connections += other.connections;
    }
}
