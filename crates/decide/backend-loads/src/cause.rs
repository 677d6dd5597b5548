//! Which service makes a backend use more CPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use fairmesh_model::{Label, ServiceName};

use crate::{
    load_board::BackendLoad,
    trend::{ServiceTrend, Trend},
};

/// Minimum ratio of recent to usual rate that counts as growth.
const GROWN: f64 = 1.5;
/// Minimum increase that counts as growth, in events per second.
const LEAST_GROWTH: f64 = 1.0;
/// Minimum share of the CPU increase that a cause must explain.
const EXPLAINED: f64 = 0.5;
/// Minimum share of the CPU increase that a service must explain if it has grown on every backend with an alert.
const EXPLAINED_IN_ALL: f64 = 0.25;
/// At or below this rate of requests per second, the usual CPU cost of a request is not a reliable measure.
const FEW_REQUESTS: f64 = 1.0;
/// Minimum rate of new connections per second that may be an attack.
const MANY_CONNECTIONS: f64 = 10.0;
/// Minimum number of idle connections (without a request) per used one that may be an attack.
const IDLE_CONNECTIONS: f64 = 2.0;
/// Minimum time for which a backend must be known before a cause is named. Before that, there is no usual load to
/// compare with.
pub(crate) const KNOWN: Duration = Duration::from_secs(15);

/// Why a backend uses more CPU than usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The service's calls have grown over all of its backends, and their number explains the CPU increase.
    Growth(ServiceName),
    /// Connections have grown, requests have not: an attack, or a client that reconnects in a loop. `None` if the
    /// connections go to no virtual address.
    Connections(Option<ServiceName>),
    /// The number of requests is about as usual, but each uses more CPU.
    CostlierRequests,
    /// No other cause applies, or no usual load is known.
    Undetermined,
}

impl Cause {
    /// The service responsible, if the cause names one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Growth(service) | Self::Connections(Some(service)) => Some(service),
            _ => None,
        }
    }

    /// Name of the cause in messages.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Growth(_) => "growth",
            Self::Connections(_) => "connections",
            Self::CostlierRequests => "costlier requests",
            Self::Undetermined => "undetermined",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Growth(service) => write!(out, "calls of {service} have grown"),
            Self::Connections(Some(service)) => {
                write!(out, "connections to {service} have grown, and its requests have not")
            }
            Self::Connections(None) => out.write_str("connections have grown, and requests have not"),
            Self::CostlierRequests => out.write_str("requests cost more CPU than before"),
            Self::Undetermined => out.write_str("undetermined"),
        }
    }
}

/// Input for finding the causes of all alerts.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// All backends.
    pub(crate) backends: &'a BTreeMap<Label, BackendLoad>,
    /// Backends with an alert.
    pub(crate) alerted: &'a BTreeSet<Label>,
    /// Served requests by service, over all live and recently live replicas. When a replica fails, others serve its
    /// calls; the total shows that this is no growth.
    pub(crate) totals: &'a BTreeMap<ServiceName, Trend>,
}

impl Evidence<'_> {
    /// Finds the cause for a backend with an alert.
    ///
    /// If several backends have an alert, a single grown service that is on all of them is the cause: no two services
    /// have the same backends (Canal Mesh, section 4.3: try the intersection once, then use the trends of each
    /// backend). The paper looks only at the intersection. Here the service must also have grown and explain a part of
    /// the CPU increase, so that an attack is not mistaken for growth.
    pub(crate) fn cause(&self, name: &Label) -> Cause {
        let Some(backend) = self.backends.get(name).filter(|one| one.known_for >= KNOWN) else {
            return Cause::Undetermined;
        };
        if backend.cores.growth() <= 0.0 {
            return Cause::Undetermined;
        }
        if let Some(service) = self.in_all() {
            return Cause::Growth(service.clone());
        }
        let most = backend.services.iter().filter(|(service, trend)| {
            self.has_grown(service, trend) && explains(backend, trend) >= EXPLAINED
        });
        let most = most.max_by(|(_, a), (_, b)| served(a).growth().total_cmp(&served(b).growth()));
        if let Some((service, _)) = most {
            return Cause::Growth(service.clone());
        }
        if let Some(attacked) = connections(backend) {
            return Cause::Connections(attacked);
        }
        let requests = requests(backend);
        let is_costlier = backend.cores.recent > GROWN * backend.cores.usual
            && requests.usual > FEW_REQUESTS
            && requests.recent < GROWN * requests.usual;
        if is_costlier { Cause::CostlierRequests } else { Cause::Undetermined }
    }

    /// The only service that has grown on every backend with an alert. `None` with fewer than two such backends.
    fn in_all(&self) -> Option<&ServiceName> {
        let mut loads = self.alerted.iter().filter_map(|name| self.backends.get(name));
        let first = loads.next()?;
        let others: Vec<&BackendLoad> = loads.collect();
        let is_grown = |load: &BackendLoad, service: &ServiceName| {
            load.services.get(service).is_some_and(|trend| {
                self.has_grown(service, trend) && explains(load, trend) >= EXPLAINED_IN_ALL
            })
        };
        let mut common = first
            .services
            .keys()
            .filter(|service| is_grown(first, service) && others.iter().all(|load| is_grown(load, service)));
        let only = common.next().filter(|_| !others.is_empty())?;
        common.next().is_none().then_some(only)
    }

    /// Whether the service's calls have grown, both here and over all of its backends, rather than its connections.
    fn has_grown(&self, service: &ServiceName, here: &ServiceTrend) -> bool {
        has_grown(served(here))
            && !has_surged(here.connections, here.requests)
            && self.totals.get(service).is_some_and(|total| has_grown(*total))
    }
}

/// Share of the CPU increase that the service's additional requests explain at their usual cost. The usual cost
/// includes CPU spent on idle connections. If the backend usually had no requests, the cost is unknown and all current
/// CPU counts as increase.
fn explains(backend: &BackendLoad, trend: &ServiceTrend) -> f64 {
    let (requests, growth) = (requests(backend), served(trend).growth());
    if requests.usual > FEW_REQUESTS {
        return growth * backend.cores.usual / requests.usual / backend.cores.growth();
    }
    let all: f64 = backend.services.values().map(|one| served(one).growth()).sum();
    if all > 0.0 { growth / all } else { 0.0 }
}

/// Requests that a server answered successfully. Refused and failed requests do not count: a flood of refusals is no
/// growth of the service.
pub(crate) fn served(trend: &ServiceTrend) -> Trend {
    let ServiceTrend { requests, errors, .. } = trend;
    Trend {
        recent: (requests.recent - errors.recent).max(0.0),
        usual: (requests.usual - errors.usual).max(0.0),
    }
}

fn requests(backend: &BackendLoad) -> Trend {
    let mut sum = Trend::default();
    backend.services.values().for_each(|one| sum += one.requests);
    sum
}

/// The target whose connections have grown more than its requests: `Some(None)` for connections to no virtual address,
/// `None` if there is no such target.
fn connections(backend: &BackendLoad) -> Option<Option<ServiceName>> {
    let surged = backend.services.iter().filter(|(_, trend)| has_surged(trend.connections, trend.requests));
    let most = surged.max_by(|(_, a), (_, b)| a.connections.growth().total_cmp(&b.connections.growth()));
    match most {
        Some((service, _)) => Some(Some(service.clone())),
        None => has_surged(backend.accepted, requests(backend)).then_some(None),
    }
}

/// Whether there are many additional connections with few additional requests. A client without keep-alive opens a
/// connection per request, which is no surge.
fn has_surged(connections: Trend, requests: Trend) -> bool {
    has_grown(connections)
        && connections.recent >= MANY_CONNECTIONS
        && connections.growth() > IDLE_CONNECTIONS * requests.growth()
}

fn has_grown(trend: Trend) -> bool {
    trend.recent >= GROWN * trend.usual && trend.growth() >= LEAST_GROWTH
}
