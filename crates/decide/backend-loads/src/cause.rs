//! Which service makes a backend use more CPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use fairmesh_model::{Label, ServiceName};

use crate::{
    board::BackendLoad,
    trend::{ServiceTrend, Trend},
};

/// A growth counts from this factor on.
const GROWN: f64 = 1.5;
/// The least growth, in events per second.
const LEAST_GROWTH: f64 = 1.0;
/// The part of an increase of CPU that a cause has to explain.
const EXPLAINED: f64 = 0.5;
/// The same for a service that has grown on all backends with an alert.
const EXPLAINED_IN_ALL: f64 = 0.25;
/// Requests per second up to which nothing follows from their usual cost.
const FEW_REQUESTS: f64 = 1.0;
/// New connections per second from which on they can be an attack.
const MANY_CONNECTIONS: f64 = 10.0;
/// Connections without a request for each that has some, from which on they can be an attack.
const IDLE_CONNECTIONS: f64 = 2.0;
/// How long a backend has to be known before a cause is named: earlier, nothing is usual.
pub(crate) const KNOWN: Duration = Duration::from_secs(15);

/// Why a backend uses more CPU than usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Calls of this service have grown, over all of its backends, and their number explains it.
    Growth(ServiceName),
    /// Connections have grown, and requests have not: an attack, or a client that reconnects in a loop. `None`: they are to no virtual
    /// address.
    Connections(Option<ServiceName>),
    /// There are about as many requests as before, and each costs more.
    CostlierRequests,
    /// None of these, or nothing usual is known to compare with.
    Undetermined,
}

impl Cause {
    /// The service that is the cause.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Growth(service) | Self::Connections(Some(service)) => Some(service),
            _ => None,
        }
    }

    /// Its name in messages.
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

/// What the causes of all alerts are found from.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// All backends.
    pub(crate) backends: &'a BTreeMap<Label, BackendLoad>,
    /// Those with an alert.
    pub(crate) alerted: &'a BTreeSet<Label>,
    /// Requests of each service over all replicas that report or did so lately. Where a replica fails, others get its calls, and that
    /// is no growth.
    pub(crate) totals: &'a BTreeMap<ServiceName, Trend>,
}

impl Evidence<'_> {
    /// The cause for a backend with an alert.
    ///
    /// If several have one, a single grown service that all of them carry is the cause: two services never have the same backends
    /// (Canal Mesh, section 4.3: the intersection is tried once, and then the trends of each backend decide). The paper looks at the
    /// intersection alone. Here the service must have grown and explain a part of the CPU, so that an attack is not taken for growth.
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

    /// The only service that has grown on all backends with an alert, if there are several.
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

    /// Whether calls of a service have grown, here and over all of its backends, and not its connections instead.
    fn has_grown(&self, service: &ServiceName, here: &ServiceTrend) -> bool {
        has_grown(served(here))
            && !has_surged(here.connections, here.requests)
            && self.totals.get(service).is_some_and(|total| has_grown(*total))
    }
}

/// The part of the CPU's increase that is the usual cost of a service's further requests. The usual cost includes what is spent on idle
/// connections. It is not known where there were no requests: what is there now is all further.
fn explains(backend: &BackendLoad, trend: &ServiceTrend) -> f64 {
    let (requests, growth) = (requests(backend), served(trend).growth());
    if requests.usual > FEW_REQUESTS {
        return growth * backend.cores.usual / requests.usual / backend.cores.growth();
    }
    let all: f64 = backend.services.values().map(|one| served(one).growth()).sum();
    if all > 0.0 { growth / all } else { 0.0 }
}

/// Requests that a server answered. Refused and failed ones do not count: a flood of refusals is no growth of a service.
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

/// Whose connections have grown by more than its requests; the outer `None`: nobody's.
fn connections(backend: &BackendLoad) -> Option<Option<ServiceName>> {
    let surged = backend.services.iter().filter(|(_, trend)| has_surged(trend.connections, trend.requests));
    let most = surged.max_by(|(_, a), (_, b)| a.connections.growth().total_cmp(&b.connections.growth()));
    match most {
        Some((service, _)) => Some(Some(service.clone())),
        None => has_surged(backend.accepted, requests(backend)).then_some(None),
    }
}

/// Whether there are many further connections, and few further requests on them. A client without keep-alive makes a connection for
/// each request.
fn has_surged(connections: Trend, requests: Trend) -> bool {
    has_grown(connections)
        && connections.recent >= MANY_CONNECTIONS
        && connections.growth() > IDLE_CONNECTIONS * requests.growth()
}

fn has_grown(trend: Trend) -> bool {
    trend.recent >= GROWN * trend.usual && trend.growth() >= LEAST_GROWTH
}
