/// Default of [`Preferences::ceiling`].
const CEILING: f64 = 0.9;
/// Default of [`Preferences::admission`]: below the ceiling, so that routing keeps a choice.
const ADMISSION: f64 = 0.85;
/// Default of [`Preferences::dollars_per_ms`].
const DOLLARS_PER_MS: f64 = 1e-5;

/// An application, the servers that run it, and what is to be minimized. Regions, services, nodes and edges are positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Number of regions, at most [`MAX_REGIONS`](crate::MAX_REGIONS).
    pub regions: usize,
    /// Round trips in milliseconds, by source region, then destination.
    pub round_trips: Vec<f64>,
    /// Dollars per 10⁹ bytes, by the region that sends them, then the one that receives them.
    pub egress_prices: Vec<f64>,
    /// The pools of each service.
    pub services: Vec<ServicePools>,
    /// The nodes of the call graph.
    pub nodes: Vec<Node>,
    /// Milliseconds by which calls of a node take longer in a region than its latency and the pool say, by node × regions + region. Negative
    /// where they are faster. Empty: nowhere.
    pub corrections: Vec<f64>,
    /// Calls from clients to nodes, and from nodes to nodes.
    pub edges: Vec<Edge>,
    /// What a plan is worth.
    pub preferences: Preferences,
}

/// The servers of one service: a pool in each region where it is placed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServicePools {
    /// Units of work per second, by region; 0 where the service is not placed.
    pub capacity: Vec<f64>,
    /// Milliseconds that one unit of work takes in an idle pool. A call of `w` units takes `sensitivity × w / (1 − load)`.
    pub sensitivity: f64,
    /// Loads from which on work has a surcharge, ascending.
    pub kinks: Vec<Kink>,
    /// Standard error of the fit, as a part of the times that it predicts. It changes no plan, and shows in
    /// [`Plan::latency_error`](super::Plan).
    pub error: f64,
}

/// A load above which each further unit of work has a surcharge: the threshold of a ring.
///
/// A surcharge above the round trip to the next ring keeps the pool at the threshold while that ring has room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kink {
    /// Utilisation between 0 and the ceiling.
    pub load: f64,
    /// Milliseconds per unit of work.
    pub surcharge: f64,
}

/// Calls of one class to one service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Position in [`Problem::services`].
    pub service: usize,
    /// Units of work of one call, without the calls that it makes.
    pub work: f64,
    /// Milliseconds of one call that do not depend on load.
    pub latency: f64,
}

/// Calls to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// Where the calls come from.
    pub caller: Caller,
    /// The node that serves them.
    pub callee: usize,
    /// Mean bytes of a request.
    pub request_bytes: f64,
    /// Mean bytes of a response.
    pub response_bytes: f64,
    /// Shares by destination region that are not to be optimized, such as those of shards or of another planner: one row for all source
    /// regions, or one for each. Empty if the optimizer is free.
    pub given: Vec<Vec<f64>>,
}

/// Where calls of an edge come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Caller {
    /// Clients outside the graph.
    Clients {
        /// Offered calls per second, by region: those that were rejected count, retries do not.
        demand: Vec<f64>,
        /// Importance: 0 is the most important and the last to be shed.
        priority: u8,
    },
    /// A node of the graph.
    Node {
        /// Position in [`Problem::nodes`].
        node: usize,
        /// Mean calls over this edge during one call of the node: multiplicity × probability.
        calls: f64,
    },
}

/// What a plan is worth, and what it must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preferences {
    /// Dollars that one millisecond less of one call is worth. Infinity leaves prices of egress out.
    pub dollars_per_ms: f64,
    /// Maximum dollars per second for egress.
    pub egress_cap: Option<f64>,
    /// Utilisation that no pool exceeds, above 0 and at most 0.99.
    pub ceiling: f64,
    /// Mean utilisation of a service's pools up to which demand is admitted, at most the ceiling.
    pub admission: f64,
}

impl Default for Preferences {
    fn default() -> Self {
        Self { dollars_per_ms: DOLLARS_PER_MS, egress_cap: None, ceiling: CEILING, admission: ADMISSION }
    }
}

impl Preferences {
    /// Milliseconds of one call that are worth a dollar.
    pub(super) fn ms_per_dollar(&self) -> f64 {
        self.dollars_per_ms.recip()
    }
}

impl Problem {
    /// Whether a service has servers in a region.
    pub(super) fn is_placed(&self, service: usize, region: usize) -> bool {
        self.services[service].capacity[region] > 0.0
    }

    /// Milliseconds of a call of a node in a region that do not depend on load.
    pub fn latency(&self, node: usize, region: usize) -> f64 {
        let correction = self.corrections.get(node * self.regions + region).copied().unwrap_or_default();
        self.nodes[node].latency + correction
    }

    /// The regions where a service has servers.
    pub(super) fn placed(&self, service: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.regions).filter(move |region| self.is_placed(service, *region))
    }
}
