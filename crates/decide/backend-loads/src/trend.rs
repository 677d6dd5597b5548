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

    /// Adds the value of an interval of length `span`. A frozen usual value stays.
    pub(crate) fn take(&mut self, value: f64, span: Duration, is_frozen: bool) {
        self.recent += (value - self.recent) * weight(span, RECENT_HALF_LIFE);
        if !is_frozen {
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

/// Which usual values stay as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    /// Those of requests and errors.
    pub(crate) all: bool,
    /// Those of connections.
    pub(crate) connections: bool,
}

/// Rates of one service, in events per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    requests: f64,
    errors: f64,
    connections: f64,
}

impl Rates {
    /// By what replicas choose the services that they report.
    pub(crate) fn weight(self) -> f64 {
        self.requests + self.connections
    }

    /// The same rates, or so much less that the weight is `most`.
    pub(crate) fn up_to(self, most: f64) -> Self {
        let part = if self.weight() > most { most / self.weight() } else { 1.0 };
        let [requests, errors, connections] =
            [self.requests, self.errors, self.connections].map(|rate| rate * part);
        Self { requests, errors, connections }
    }
}

impl ServiceCounts {
    /// Rates over an interval of length `span`.
    pub(crate) fn rates(self, span: Duration) -> Rates {
        let ServiceCounts { requests, errors, connections } = self;
        let [requests, errors, connections] =
            [requests, errors, connections].map(|count| per_second(count, span));
        Rates { requests, errors, connections }
    }
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
    /// Starts the trends: the first rates are also the usual ones.
    pub(crate) fn first(rates: Rates) -> Self {
        let Rates { requests, errors, connections } = rates;
        let [requests, errors, connections] = [requests, errors, connections].map(Trend::first);
        Self { requests, errors, connections }
    }

    /// Adds the rates of an interval of length `span`.
    pub(crate) fn take(&mut self, rates: Rates, span: Duration, frozen: Frozen) {
        self.requests.take(rates.requests, span, frozen.all);
        self.errors.take(rates.errors, span, frozen.all);
        self.connections.take(rates.connections, span, frozen.connections);
    }

    /// Rates of the last seconds.
    pub(crate) const fn recent(&self) -> Rates {
        let Self { requests, errors, connections } = self;
        Rates { requests: requests.recent, errors: errors.recent, connections: connections.recent }
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
