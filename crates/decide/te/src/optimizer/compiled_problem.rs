//! The problem as arrays: nodes in the order of calls, edges by callee, and pools of the regions that have servers.

use std::ops::Range;

use super::{
    pool_cost::Pool,
    problem::{Caller, Edge, Problem},
    topological_order::{Order, order},
    validation::ProblemError,
};

/// Bytes of the unit that prices of egress are for.
const BYTES_OF_PRICE: f64 = 1e9;

/// The compiled problem. A *state* is a node in a region where it is placed; a *block* is an edge from one source region.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) regions: usize,
    pub(super) services: Vec<Service>,
    pub(super) pools: Vec<Pool>,
    pub(super) nodes: Vec<CallNode>,
    pub(super) edges: Vec<CallEdge>,
    pub(super) states: usize,
    pub(super) blocks: usize,
    /// Edges of the problem that close a cycle.
    pub(super) cut: Vec<usize>,
    /// Milliseconds that a dollar of egress counts as.
    pub(super) ms_per_dollar: f64,
}

/// Matrices have a row for each region and a column for each placed region.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) placed: Vec<u16>,
    pub(super) first_pool: usize,
    pub(super) trips: Vec<f64>,
    request_prices: Vec<f64>,
    response_prices: Vec<f64>,
}

#[derive(Clone, Debug)]
pub(super) struct CallNode {
    pub(super) service: usize,
    pub(super) work: f64,
    /// By placed region.
    pub(super) latency: Vec<f64>,
    pub(super) first_state: usize,
    pub(super) inbound: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct CallEdge {
    /// Position in the problem.
    pub(super) number: usize,
    pub(super) origin: Origin,
    pub(super) callee: usize,
    /// Regions that calls come from.
    pub(super) sources: Vec<u16>,
    pub(super) first_block: usize,
    /// Units of 10⁹ bytes of a call.
    request: f64,
    response: f64,
    /// Destination among the placed regions and share: no row, one for all sources, or one for each.
    pub(super) given: Vec<Vec<(u16, f64)>>,
}

#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// Calls per second, by source.
    Clients(Vec<f64>),
    Caller {
        node: usize,
        calls: f64,
    },
    /// An edge that closes a cycle: calls per second, by source, that the plan before caused.
    Lagged {
        node: usize,
        calls: f64,
        rates: Vec<f64>,
    },
}

impl Network {
    /// Compiles a valid problem; `admitted` is the share of each edge's demand that is served.
    pub(super) fn new(problem: &Problem, admitted: &[f64]) -> Result<Self, ProblemError> {
        let Order { nodes: order, cut } = order(problem)?;
        let mut network = Self {
            regions: problem.regions,
            services: Vec::new(),
            pools: Vec::new(),
            nodes: Vec::new(),
            edges: Vec::new(),
            states: 0,
            blocks: 0,
            cut,
            ms_per_dollar: problem.preferences.ms_per_dollar(),
        };
        (0..problem.services.len()).for_each(|service| network.add_service(problem, service));
        let mut position = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, node)| position[*node] = at);
        let mut inbound = vec![Vec::new(); order.len()];
        for (number, edge) in problem.edges.iter().enumerate() {
            inbound[edge.callee].push(number);
        }
        for node in order {
            network.add_node(problem, node);
            let first = network.edges.len();
            for number in &inbound[node] {
                network.add_edge(problem, *number, (&position, admitted[*number]));
            }
            let last = network.nodes.len() - 1;
            network.nodes[last].inbound = first..network.edges.len();
        }
        Ok(network)
    }

    fn add_service(&mut self, problem: &Problem, service: usize) {
        let placed: Vec<usize> = problem.placed(service).collect();
        let columns = |matrix: &[f64], is_back: bool| {
            let entry = |from: usize, to: usize| match is_back {
                true => matrix[to * problem.regions + from],
                false => matrix[from * problem.regions + to],
            };
            let row = |from| placed.iter().map(move |to| entry(from, *to));
            (0..problem.regions).flat_map(row).collect::<Vec<f64>>()
        };
        self.services.push(Service {
            first_pool: self.pools.len(),
            trips: columns(&problem.round_trips, false),
            request_prices: columns(&problem.egress_prices, false),
            response_prices: columns(&problem.egress_prices, true),
            placed: placed.iter().map(|region| *region as u16).collect(),
        });
        let ceiling = problem.preferences.ceiling;
        let pools = &problem.services[service];
        // A first guess of the cost of the way around a full pool; the pool raises it.
        let farthest = problem.round_trips.iter().copied().fold(0.0, f64::max);
        let pool = |region: &usize| Pool::new(pools, pools.capacity[*region], (ceiling, farthest));
        self.pools.extend(placed.iter().map(pool));
    }

    fn add_node(&mut self, problem: &Problem, number: usize) {
        let node = &problem.nodes[number];
        let placed = &self.services[node.service].placed;
        let latency = placed.iter().map(|region| problem.latency(number, usize::from(*region))).collect();
        self.nodes.push(CallNode {
            service: node.service,
            work: node.work,
            latency,
            first_state: self.states,
            inbound: 0..0,
        });
        self.states += self.services[node.service].placed.len();
    }

    fn add_edge(&mut self, problem: &Problem, number: usize, (position, admitted): (&[usize], f64)) {
        let edge = &problem.edges[number];
        let callee = self.nodes.len() - 1;
        let (origin, sources) = match &edge.caller {
            Caller::Clients { demand, .. } => {
                let rates = demand.iter().map(|rate| rate * admitted).collect();
                (Origin::Clients(rates), (0..problem.regions).map(|region| region as u16).collect())
            }
            Caller::Node { node, calls } => {
                let sources = self.services[problem.nodes[*node].service].placed.clone();
                let (node, calls) = (position[*node], *calls);
                let is_cut = self.cut.binary_search(&number).is_ok();
                let lagged = Origin::Lagged { node, calls, rates: vec![0.0; sources.len()] };
                (if is_cut { lagged } else { Origin::Caller { node, calls } }, sources)
            }
        };
        let given = self.given_rows(edge, callee, &sources);
        let first_block = self.blocks;
        self.blocks += sources.len();
        let (request, response) = (edge.request_bytes / BYTES_OF_PRICE, edge.response_bytes / BYTES_OF_PRICE);
        self.edges.push(CallEdge { number, origin, callee, sources, first_block, request, response, given });
    }

    fn given_rows(&self, edge: &Edge, callee: usize, sources: &[u16]) -> Vec<Vec<(u16, f64)>> {
        let placed = &self.services[self.nodes[callee].service].placed;
        let row = |row: &Vec<f64>| {
            let share = |(at, region): (usize, &u16)| (at as u16, row[usize::from(*region)]);
            placed.iter().enumerate().map(share).filter(|(_, share)| *share > 0.0).collect()
        };
        match edge.given.len() {
            0 | 1 => edge.given.iter().map(row).collect(),
            _ => sources.iter().map(|source| row(&edge.given[usize::from(*source)])).collect(),
        }
    }

    pub(super) fn service_of(&self, edge: &CallEdge) -> &Service {
        &self.services[self.nodes[edge.callee].service]
    }

    /// Milliseconds of a call over an edge to the placed region `to`: its round trip and what its egress counts as.
    pub(super) fn arc_cost(&self, edge: &CallEdge, source: usize, to: usize) -> f64 {
        let service = self.service_of(edge);
        service.trips[source * service.placed.len() + to]
            + self.ms_per_dollar * self.arc_dollars(edge, source, to)
    }

    /// Dollars of a call over an edge, request and response.
    pub(super) fn arc_dollars(&self, edge: &CallEdge, source: usize, to: usize) -> f64 {
        let service = self.service_of(edge);
        let at = source * service.placed.len() + to;
        edge.request * service.request_prices[at] + edge.response * service.response_prices[at]
    }

    /// The costs of a call to each placed region, into `costs`.
    pub(super) fn arc_costs(&self, edge: &CallEdge, source: usize, costs: &mut Vec<f64>) {
        let service = self.service_of(edge);
        let row = source * service.placed.len()..(source + 1) * service.placed.len();
        let (request, response) = (self.ms_per_dollar * edge.request, self.ms_per_dollar * edge.response);
        let prices = service.request_prices[row.clone()].iter().zip(&service.response_prices[row.clone()]);
        let cost = |(trip, (sent, back)): (&f64, (&f64, &f64))| trip + request * sent + response * back;
        costs.clear();
        costs.extend(service.trips[row].iter().zip(prices).map(cost));
    }

    /// Calls per second over an edge from its source `at`, where `arrivals` are those of states.
    pub(super) fn rate(&self, edge: &CallEdge, at: usize, arrivals: &[f64]) -> f64 {
        match &edge.origin {
            Origin::Clients(rates) | Origin::Lagged { rates, .. } => rates[at],
            Origin::Caller { node, calls } => calls * arrivals[self.nodes[*node].first_state + at],
        }
    }

    /// Starts from multipliers of another plan, by service × regions + region.
    pub(super) fn set_multipliers(&mut self, multipliers: &[Vec<f64>]) {
        let mut places = Vec::new();
        self.each_pool(|at, pool| places.push((at, pool)));
        for (at, pool) in places {
            self.pools[pool].set_multipliers(multipliers.get(at).map_or(&[], Vec::as_slice));
        }
    }

    /// Calls `visit` with service × regions + region and the position of each pool.
    pub(super) fn each_pool(&self, mut visit: impl FnMut(usize, usize)) {
        for (number, service) in self.services.iter().enumerate() {
            for (at, region) in service.placed.iter().enumerate() {
                visit(number * self.regions + usize::from(*region), service.first_pool + at);
            }
        }
    }

    /// Sets the rates of edges that close cycles to what `arrivals` cause. Returns the greatest change, as a share of the rate.
    pub(super) fn renew_lagged(&mut self, arrivals: &[f64]) -> f64 {
        let mut change: f64 = 0.0;
        for edge in &mut self.edges {
            let Origin::Lagged { node, calls, rates } = &mut edge.origin else { continue };
            let first = self.nodes[*node].first_state;
            for (rate, arriving) in rates.iter_mut().zip(&arrivals[first..]) {
                let now = *calls * arriving;
                change = change.max((now - *rate).abs() / now.max(1e-9));
                *rate = now;
            }
        }
        change
    }
}

impl Service {
    /// Placed regions by distance from a source; its own region first.
    pub(super) fn nearest(&self, source: usize) -> Vec<usize> {
        let trip = |to: usize| self.trips[source * self.placed.len() + to];
        let is_other = |to: usize| usize::from(self.placed[to]) != source;
        let mut nearest: Vec<usize> = (0..self.placed.len()).collect();
        nearest.sort_by(|a, b| is_other(*a).cmp(&is_other(*b)).then(trip(*a).total_cmp(&trip(*b))));
        nearest
    }
}

impl CallEdge {
    /// The given shares of the source `at`; `None` where the optimizer is free.
    pub(super) fn given_row(&self, at: usize) -> Option<&[(u16, f64)]> {
        match self.given.len() {
            0 => None,
            1 => Some(&self.given[0]),
            _ => Some(&self.given[at]),
        }
    }

    /// The calling state of the source `at` and calls over this edge for each of its calls.
    pub(super) fn caller(&self, network: &Network, at: usize) -> Option<(usize, f64)> {
        match self.origin {
            Origin::Caller { node, calls } => Some((network.nodes[node].first_state + at, calls)),
            Origin::Clients(_) | Origin::Lagged { .. } => None,
        }
    }
}
