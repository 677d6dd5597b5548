//! Random applications for evaluating the optimizer: many against an independent solver, and large ones for timing.
//!
//! `sim/tests/optimizer/oracle.py` generates the same applications with the same arithmetic. When changing one, change
//! the other, and its objectives.

use fairmesh_te::optimizer::{Caller, Edge, Kink, Node, Preferences, Problem, ServicePools};

/// Parameters of a random application.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomApplication {
    /// Number of regions. The first fifth of them have three times the demand.
    pub regions: usize,
    /// Number of services.
    pub services: usize,
    /// Number of classes. The work of their calls differs by a factor of up to twelve.
    pub classes: usize,
    /// Number of services that clients call.
    pub roots: usize,
    /// Number of layers of services. With 0, services form SLATE's graph: three callees, the first of which has three
    /// again.
    pub layers: usize,
    /// Share of regions in which a service has servers; at least two regions have them.
    pub placed: f64,
    /// Mean utilisation.
    pub load: f64,
    /// Share of edges whose shares are given.
    pub given: f64,
    /// Loads at which a surcharge of 20 times the sensitivity starts.
    pub kinks: Vec<f64>,
}

/// Random number generator SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

impl RandomApplication {
    /// Returns the application with this seed.
    pub fn problem(&self, seed: u64) -> Problem {
        let mut random = Random(seed);
        let (round_trips, egress_prices) = self.distances(&mut random);
        let nodes = self.nodes(&mut random);
        let placed = self.placement(&mut random);
        let mut edges = self.client_edges(&mut random);
        for (service, placed) in placed.iter().enumerate().skip(self.roots) {
            self.add_call_edges(&mut random, (service, placed), &mut edges);
        }
        let works = self.works(&nodes, &edges);
        let services = placed.iter().zip(works).map(|(placed, work)| self.pools(&mut random, placed, work));
        Problem {
            regions: self.regions,
            round_trips,
            egress_prices,
            services: services.collect(),
            nodes,
            corrections: Vec::new(),
            edges,
            preferences: Preferences { admission: 0.9, ..Preferences::default() },
        }
    }

    /// Draws distances and egress prices. Regions lie in a square with sides of 70 ms; prices depend on the sending
    /// region.
    fn distances(&self, random: &mut Random) -> (Vec<f64>, Vec<f64>) {
        let places: Vec<(f64, f64)> =
            (0..self.regions).map(|_| (random.between(0.0, 1.0), random.between(0.0, 1.0))).collect();
        let factors: Vec<f64> = (0..self.regions).map(|_| random.between(0.8, 1.2)).collect();
        let (mut trips, mut prices) = (Vec::new(), Vec::new());
        for (from, (x, y)) in places.iter().enumerate() {
            for (to, (other_x, other_y)) in places.iter().enumerate() {
                let (right, up) = (x - other_x, y - other_y);
                let distance = (right * right + up * up).sqrt();
                let base = if distance > 0.5 { 0.04 } else { 0.02 };
                trips.push(if from == to { 0.0 } else { 5.0 + 70.0 * distance });
                prices.push(if from == to { 0.0 } else { base * factors[from] });
            }
        }
        (trips, prices)
    }

    /// Nodes ordered by service, then class.
    fn nodes(&self, random: &mut Random) -> Vec<Node> {
        let works: Vec<f64> = (0..self.classes).map(|_| random.between(0.5, 6.0)).collect();
        let mut nodes = Vec::new();
        for service in 0..self.services {
            for work in &works {
                let work = work * random.between(0.5, 1.5);
                nodes.push(Node { service, work, latency: random.between(0.5, 5.0) });
            }
        }
        nodes
    }

    fn placement(&self, random: &mut Random) -> Vec<Vec<bool>> {
        let least = self.regions.min(2);
        let mut placement = Vec::new();
        for service in 0..self.services {
            let mut placed: Vec<bool> =
                (0..self.regions).map(|_| random.between(0.0, 1.0) < self.placed).collect();
            for more in 0..self.regions {
                if placed.iter().filter(|placed| **placed).count() < least {
                    placed[(service + more) % self.regions] = true;
                }
            }
            placement.push(placed);
        }
        placement
    }

    fn client_edges(&self, random: &mut Random) -> Vec<Edge> {
        let busy = (self.regions / 5).max(1);
        let mut edges = Vec::new();
        for service in 0..self.roots {
            for class in 0..self.classes {
                let mut demand = Vec::new();
                for region in 0..self.regions {
                    demand.push(random.between(50.0, 150.0) * if region < busy { 3.0 } else { 1.0 });
                }
                let caller = Caller::Clients { demand, priority: class as u8 };
                edges.push(edge(random, caller, service * self.classes + class));
            }
        }
        edges
    }

    fn layer(&self, service: usize) -> usize {
        match service < self.roots {
            true => 0,
            false => 1 + (service * 7919) % (self.layers - 1),
        }
    }

    /// Draws the services that call a service: one or, with a probability of one third, two.
    fn callers(&self, random: &mut Random, service: usize) -> Vec<usize> {
        if self.layers == 0 {
            return vec![(service - 1) / 3 * 3 - if service > 3 { 2 } else { 0 }];
        }
        let layer = self.layer(service);
        // A layer may be empty, except for the roots.
        let above: Vec<usize> = (0..self.services).filter(|other| self.layer(*other) + 1 == layer).collect();
        let above = if above.is_empty() { (0..self.roots).collect() } else { above };
        let first = random.choose(&above);
        let second = random.choose(&above);
        let has_two = random.between(0.0, 1.0) < 0.33 && second != first;
        if has_two { vec![first, second] } else { vec![first] }
    }

    fn add_call_edges(
        &self,
        random: &mut Random,
        (service, placed): (usize, &[bool]),
        edges: &mut Vec<Edge>,
    ) {
        let callers = self.callers(random, service);
        for from in &callers {
            for class in 0..self.classes {
                let other = random.below(self.classes);
                let is_other = self.layers > 0 && random.between(0.0, 1.0) < 0.3;
                let calls = random.choose(&[0.25, 0.5, 1.0, 2.0]) / callers.len() as f64;
                let caller = Caller::Node { node: from * self.classes + class, calls };
                let callee = service * self.classes + if is_other { other } else { class };
                let mut edge = edge(random, caller, callee);
                if random.between(0.0, 1.0) < self.given {
                    edge.given = vec![given_row(random, placed)];
                }
                edges.push(edge);
            }
        }
    }

    /// Work per second of each service.
    fn works(&self, nodes: &[Node], edges: &[Edge]) -> Vec<f64> {
        let mut rates = vec![0.0; nodes.len()];
        // Callers of a service may have greater numbers, but are in a layer above it.
        for _ in 0..self.layers.max(self.services) {
            let mut next = vec![0.0; nodes.len()];
            for edge in edges {
                next[edge.callee] += match &edge.caller {
                    Caller::Clients { demand, .. } => demand.iter().sum::<f64>(),
                    Caller::Node { node, calls } => calls * rates[*node],
                };
            }
            if next == rates {
                break;
            }
            rates = next;
        }
        let mut works = vec![0.0; self.services];
        for (node, rate) in nodes.iter().zip(rates) {
            works[node.service] += node.work * rate;
        }
        works
    }

    fn pools(&self, random: &mut Random, placed: &[bool], work: f64) -> ServicePools {
        let mut capacity = Vec::new();
        let mut sum = 0.0;
        for placed in placed {
            let part = random.between(0.8, 1.2);
            capacity.push(if *placed { part } else { 0.0 });
            sum += if *placed { part } else { 0.0 };
        }
        // Even a service that is never called has servers.
        let all = work.max(1.0) / self.load;
        capacity.iter_mut().for_each(|part| *part = *part / sum * all);
        let sensitivity = random.between(1.0, 4.0);
        let kink = |load: &f64| Kink { load: *load, surcharge: 20.0 * sensitivity };
        let kinks = self.kinks.iter().map(kink).collect();
        ServicePools { capacity, sensitivity, kinks, ..ServicePools::default() }
    }
}

fn edge(random: &mut Random, caller: Caller, callee: usize) -> Edge {
    let request_bytes = random.choose(&[1e3, 1e4]);
    let response_bytes = random.choose(&[2e3, 2e4, 2e5]);
    Edge { caller, callee, request_bytes, response_bytes, given: Vec::new() }
}

fn given_row(random: &mut Random, placed: &[bool]) -> Vec<f64> {
    let mut row = Vec::new();
    let mut sum = 0.0;
    for placed in placed {
        let part = random.between(0.2, 1.0);
        row.push(if *placed { part } else { 0.0 });
        sum += if *placed { part } else { 0.0 };
    }
    row.iter_mut().for_each(|part| *part /= sum);
    row
}
