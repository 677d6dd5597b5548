//! An application as written in YAML: regions, services, operations and clients.

mod events;
mod play;
mod validation;
mod variant;

use std::collections::BTreeMap;

use fairmesh_model::{Dollars, Region, Regions, RoundTrips, spec::TopologySpec};
use fairmesh_te::optimizer::{Caller, Edge, Node, Preferences, Problem, ServicePools};
use serde::{Deserialize, Serialize};

pub use play::{Play, PoolEvent};
pub use variant::{Pool, Variant};

use super::pool_shape::PoolShape;
use crate::scenario::{Limit, RateAt, SimTime, ThresholdRing};

/// An application and its load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Kind of the scenario.
    #[serde(default)]
    pub kind: Kind,
    /// Name of the application.
    pub name: String,
    /// Purpose of the scenario.
    #[serde(default)]
    pub about: String,
    /// Regions, round trips and egress prices, as in a `Topology`. Undeclared round trips count as 0.
    pub topology: TopologySpec,
    /// Services and their servers.
    pub services: Vec<Service>,
    /// Operations: calls of one class to one service each.
    pub operations: Vec<Operation>,
    /// Calls that clients make from outside.
    pub clients: Vec<Clients>,
    /// Rings for the rings planner.
    pub rings: Vec<ThresholdRing>,
    /// Utilisation up to which Waterfall fills a region.
    #[serde(default = "waterfall")]
    pub waterfall: f64,
    /// Settings for the simulation of requests.
    #[serde(default)]
    pub play: Play,
    /// Variants of the scenario with other load, servers or events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
}

/// Distinguishes these scenarios from those of fleets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// An application.
    #[default]
    App,
}

/// A service and its servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Name of the service.
    pub name: String,
    /// Number of cores by region.
    pub cores: BTreeMap<String, f64>,
    /// Maximum number of cores per server. A pool has as many equal servers as it needs.
    #[serde(default = "server_cores")]
    pub server: f64,
    /// Worker slots and queue of a server. A call holds its slot until its response, also while it waits for calls
    /// that it makes.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// A cache that all servers of a region share.
    #[serde(default)]
    pub cache: Option<Cache>,
}

/// An LRU cache of records.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cache {
    /// Capacity of the cache, in records.
    pub records: u32,
    /// Mean time to fetch a missing record. The time is exponentially distributed.
    pub miss: SimTime,
}

/// Calls of one class to one service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Operation {
    /// Name of the operation, unique in the file.
    pub name: String,
    /// The service that implements the operation.
    pub service: String,
    /// Mean CPU time of a call on one core. The time is exponentially distributed.
    pub cpu: SimTime,
    /// Additional time that does not depend on load.
    #[serde(default)]
    pub wait: SimTime,
    /// Range of records from which a call reads one at random, by the caller's region: the first record, and the one
    /// after the last. Calls from other regions read no record.
    #[serde(default)]
    pub records: BTreeMap<String, [u32; 2]>,
    /// Calls that the operation makes. Stages run in sequence, the calls of a stage in parallel.
    #[serde(default)]
    pub calls: Vec<Vec<Call>>,
}

/// Calls to an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// Name of the called operation.
    pub to: String,
    /// Mean number of calls, that is, multiplicity times probability.
    #[serde(default = "one")]
    pub times: f64,
    /// Whether these calls are made at once instead of one after the other.
    #[serde(default)]
    pub parallel: bool,
    /// Mean size of a request, in bytes.
    #[serde(default)]
    pub request: f64,
    /// Mean size of a response, in bytes.
    #[serde(default)]
    pub response: f64,
}

/// Calls from outside to an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clients {
    /// Name of the called operation.
    pub to: String,
    /// Calls per second by region.
    pub rates: BTreeMap<String, f64>,
    /// Priority of the calls: calls with priority 0 are shed last.
    #[serde(default)]
    pub priority: u8,
    /// Changes of the rates by region: the factor at each time, interpolated linearly.
    #[serde(default)]
    pub rate_over_time: BTreeMap<String, Vec<RateAt>>,
}

fn waterfall() -> f64 {
    0.8
}

fn one() -> f64 {
    1.0
}

fn server_cores() -> f64 {
    4.0
}

/// Milliseconds per second, as work is measured in milliseconds of a core.
const MS_PER_SECOND: f64 = 1e3;
/// Seconds per hour, as egress caps are given per hour.
const SECONDS_PER_HOUR: f64 = 3_600.0;

impl Call {
    /// Mean number of these calls that are made one after the other.
    pub(crate) fn repeats(&self) -> f64 {
        if self.parallel { self.times.min(1.0) } else { self.times }
    }
}

impl Scenario {
    /// Names of regions, by position.
    pub(crate) fn regions(&self) -> Vec<&str> {
        self.topology.regions.iter().map(|region| region.name.as_str()).collect()
    }

    pub(crate) fn operation(&self, name: &str) -> Option<usize> {
        self.operations.iter().position(|operation| operation.name == name)
    }

    pub(crate) fn service(&self, name: &str) -> Option<usize> {
        self.services.iter().position(|service| service.name == name)
    }

    /// Regions, prices and distances of a valid scenario.
    pub(crate) fn places(&self) -> (Regions, RoundTrips) {
        self.topology.validate().unwrap_or_default()
    }

    /// The optimizer's problem for a valid scenario. Nodes are operations. Edges are first those of clients, then the
    /// calls of operations in order. The unit of work is a millisecond of a core.
    pub(crate) fn problem(&self) -> Problem {
        let by_region = |values: &BTreeMap<String, f64>, times: f64| -> Vec<f64> {
            self.regions().iter().map(|region| values.get(*region).copied().unwrap_or(0.0) * times).collect()
        };
        let shapes: Vec<PoolShape> = self.services.iter().map(|one| PoolShape::of(&one.cores)).collect();
        let pools = |(service, shape): (&Service, &PoolShape)| ServicePools {
            capacity: by_region(&service.cores, MS_PER_SECOND),
            sensitivity: shape.sensitivity,
            ..ServicePools::default()
        };
        let node = |operation: &Operation| {
            let service = self.service(&operation.service).unwrap_or(0);
            let work = operation.cpu.as_seconds() * MS_PER_SECOND;
            let wait = operation.wait.as_seconds() * MS_PER_SECOND;
            Node { service, work, latency: wait + shapes[service].base * work }
        };
        let clients = self.clients.iter().map(|clients| {
            let caller =
                Caller::Clients { demand: by_region(&clients.rates, 1.0), priority: clients.priority };
            edge(caller, self.operation(&clients.to), (0.0, 0.0))
        });
        let calls = self.operations.iter().enumerate().flat_map(|(node, operation)| {
            let edge = move |call: &Call| {
                let caller = Caller::Node { node, calls: call.times };
                edge(caller, self.operation(&call.to), (call.request, call.response))
            };
            operation.calls.iter().flatten().map(edge)
        });
        let egress = self.places().0.egress;
        let (round_trips, egress_prices) = self.matrices();
        let preferences = Preferences {
            dollars_per_ms: egress.per_ms.map_or(f64::INFINITY, Dollars::amount),
            egress_cap: egress.cap.map(|cap| cap.amount() / SECONDS_PER_HOUR),
            ..Preferences::default()
        };
        Problem {
            regions: self.topology.regions.len(),
            round_trips,
            egress_prices,
            services: self.services.iter().zip(&shapes).map(pools).collect(),
            nodes: self.operations.iter().map(node).collect(),
            corrections: Vec::new(),
            edges: clients.chain(calls).collect(),
            preferences,
        }
    }

    /// Returns round trips in milliseconds, and egress prices.
    fn matrices(&self) -> (Vec<f64>, Vec<f64>) {
        let (places, trips) = self.places();
        let regions: Vec<Option<Region>> = self.regions().iter().map(|name| name.parse().ok()).collect();
        let (mut round_trips, mut prices) = (Vec::new(), Vec::new());
        for region in &regions {
            for other in &regions {
                let pair = region.as_ref().zip(other.as_ref());
                let trip = pair.and_then(|(from, to)| trips.get(from, to));
                round_trips.push(trip.map_or(0.0, |trip| trip.as_secs_f64() * MS_PER_SECOND));
                prices.push(pair.map_or(0.0, |(from, to)| places.egress.price(from, to).amount()));
            }
        }
        (round_trips, prices)
    }
}

/// Names in a valid scenario refer to existing operations.
fn edge(caller: Caller, callee: Option<usize>, (request_bytes, response_bytes): (f64, f64)) -> Edge {
    Edge { caller, callee: callee.unwrap_or(0), request_bytes, response_bytes, given: Vec::new() }
}
