//! Rates of late and what is usual, as exponentially weighted means.

use std::{ops::AddAssign, time::Duration};

use crate::report::ServiceCounts;

/// After this time, half of the recent mean is of newer reports: short enough to tell an overload within seconds.
const RECENT_HALF_LIFE: Duration = Duration::from_secs(2);
/// The same for the usual mean: long enough that minutes of growth do not become usual before an alert.
const USUAL_HALF_LIFE: Duration = Duration::from_secs(60);

/// A rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trend {
    /// Of the last seconds.
    pub recent: f64,
    /// Of the minutes before.
    pub usual: f64,
}

impl Trend {
    /// A trend whose first value is also the usual one.
    pub(crate) const fn first(value: f64) -> Self {
        Self { recent: value, usual: value }
    }

    /// Takes the value of an interval of this length. What is usual stays as it is while `is_alert`.
    pub(crate) fn take(&mut self, value: f64, span: Duration, is_alert: bool) {
        self.recent += (value - self.recent) * weight(span, RECENT_HALF_LIFE);
        if !is_alert {
            self.usual += (value - self.usual) * weight(span, USUAL_HALF_LIFE);
        }
    }

    /// By how much it is above the usual; 0 where it is below.
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

/// A count as a rate.
pub(crate) fn per_second(count: u64, span: Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

/// The weight of the newest value.
fn weight(span: Duration, half_life: Duration) -> f64 {
    1.0 - 0.5_f64.powf(span.as_secs_f64() / half_life.as_secs_f64())
}

/// The trends of one service, in events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceTrend {
    /// Requests with a response, errors included.
    pub requests: Trend,
    /// Responses with a status of 4xx or 5xx.
    pub errors: Trend,
    /// New connections to its virtual address.
    pub connections: Trend,
}

impl ServiceTrend {
    /// A trend whose first counts are also the usual ones.
    pub(crate) fn first(counts: ServiceCounts, span: Duration) -> Self {
        let first = |count| Trend::first(per_second(count, span));
        Self {
            requests: first(counts.requests),
            errors: first(counts.errors),
            connections: first(counts.connections),
        }
    }

    /// Takes the counts of an interval of this length.
    pub(crate) fn take(&mut self, counts: ServiceCounts, span: Duration, is_alert: bool) {
        let ServiceCounts { requests, errors, connections } = counts;
        self.requests.take(per_second(requests, span), span, is_alert);
        self.errors.take(per_second(errors, span), span, is_alert);
        self.connections.take(per_second(connections, span), span, is_alert);
    }

    /// Whether it had nothing for so long that it need not be kept.
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
