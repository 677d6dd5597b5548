use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use fairmesh_balancer::{BalancerConfig, CandidateSet, EndpointStats, rendezvous};
use fairmesh_model::{
    BalancingPolicy, Endpoint, EndpointState, FULL_WEIGHT, Force, InstanceId, Judged, LoadSignal, Policy,
    Role, ServiceKind,
    arith::{hash_text, mix_pair},
};

use super::{Hashed, Holder, Kind, Node, Sharding, Standing, Tier, Upstream};
use crate::{
    EndpointTarget, Facts, Shards, Unroutable,
    horizon::{Class, Horizon},
    routes::Routes,
    treatment::carried,
};

pub(super) fn compile(
    facts: &Facts<'_>,
    endpoint_stats: &Arc<EndpointStats>,
    previous: Option<&Upstream>,
) -> Upstream {
    let horizon = Horizon::new(facts);
    let chooser = mix_pair(facts.client, hash_text(&facts.name.to_string()));
    let endpoints = unique(facts.endpoints);
    let powers: Vec<u32> = endpoints.iter().map(|endpoint| facts.hosts.power(endpoint)).collect();
    let Judged { forces, panics } = facts.health.judge(&endpoints, facts.hosts);
    let draft =
        Draft { facts, horizon: &horizon, chooser, endpoints: &endpoints, powers: &powers, forces: &forces };
    let tiers = draft.tiers();
    if previous.is_none() {
        // A client's first turn is its own, or all would move in step.
        endpoint_stats.start_round_robin_at(chooser as u32);
    }
    let config = BalancerConfig::new(&facts.policy.balancing);
    let (indices, index_pin) = draft.assign(endpoint_stats, &tiers);
    let targets = draft.targets(&indices, previous);
    let standings = draft.standings(&indices, &tiers);
    let nothing = draft.nothing();
    draft.admit(endpoint_stats, &config, &indices, &tiers);
    let kind = draft.kind(&indices, tiers);
    Upstream {
        endpoint_stats: Arc::clone(endpoint_stats),
        pick_config: config.pick_config(),
        routes: Routes::compile(
            &facts.policy.routes,
            facts.client_id,
            previous.map(|previous| &previous.routes),
        ),
        bucket: carried(facts.policy.limit, previous.and_then(|previous| previous.bucket.as_ref())),
        timeouts: facts.policy.timeouts,
        last_resort: horizon.last_resort(),
        kind,
        name: facts.name.clone(),
        policy: without_routes(facts.policy),
        protocol: facts.service.protocol,
        chooser,
        targets,
        standings,
        nothing,
        horizon,
        panics: panics.into_boxed_slice(),
        _index_pin: index_pin,
    }
}

/// The policy but for its routes, which are compiled: many services have few endpoints, and routes are what is largest of them.
fn without_routes(policy: &Policy) -> Policy {
    let Policy { routes: _, locality, balancing, timeouts, retries, limit, key, health_check, lookaside } =
        policy;
    Policy {
        routes: Vec::new(),
        locality: locality.clone(),
        balancing: balancing.clone(),
        timeouts: *timeouts,
        retries: retries.clone(),
        limit: *limit,
        key: key.clone(),
        health_check: health_check.clone(),
        lookaside: lookaside.clone(),
    }
}

/// Each instance once. While it moves to another region it stands in two records: the one that serves counts.
fn unique(endpoints: &[Endpoint]) -> Vec<&Endpoint> {
    let mut places: HashMap<&InstanceId, usize> = HashMap::with_capacity(endpoints.len());
    let mut unique: Vec<&Endpoint> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let place = *places.entry(&endpoint.instance).or_insert(unique.len());
        match unique.get_mut(place) {
            None => unique.push(endpoint),
            Some(other) if other.state != EndpointState::Serving => *other = endpoint,
            Some(_) => {}
        }
    }
    unique
}

/// A snapshot while it is compiled. Endpoints are positions in `endpoints` until they have indices.
struct Draft<'a> {
    facts: &'a Facts<'a>,
    horizon: &'a Horizon,
    chooser: u64,
    endpoints: &'a [&'a Endpoint],
    /// What each can do: weights alone would give a slow machine as much as a fast one (Uber, zone weights and host-aware balancing).
    powers: &'a [u32],
    /// How much active checks speak against each.
    forces: &'a [Force],
}

/// Positions, by preference.
type Positions = Tier<Vec<usize>>;

impl Draft<'_> {
    fn class(&self, position: usize) -> Option<Class> {
        Class::of(self.endpoints[position].state, self.forces[position])
    }

    fn rank(&self, position: usize) -> Option<u32> {
        let reach = self.horizon.reach(&self.endpoints[position].location.region);
        self.horizon.rank(self.class(position)?, reach)
    }

    /// An endpoint as rendezvous hashing sees it.
    fn hash(&self, position: usize) -> u64 {
        hash_text(self.endpoints[position].instance.as_str())
    }

    /// The endpoints that may be called, by rank; of replicated services only this client's subset of each (ServiceRouter §3.4.2).
    fn tiers(&self) -> Vec<Positions> {
        let mut ranks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for position in 0..self.endpoints.len() {
            if let Some(rank) = self.rank(position) {
                ranks.entry(rank).or_default().push(position);
            }
        }
        let keep = match self.facts.service.kind {
            ServiceKind::Replicated => self.facts.policy.balancing.subset as usize,
            ServiceKind::Sharded | ServiceKind::ConsistentHash => 0,
        };
        let tier = |(rank, positions): (u32, Vec<usize>)| {
            let candidates = self.subset(&positions, keep);
            Tier { rank, of: positions.len() as u32, candidates }
        };
        ranks.into_iter().map(tier).collect()
    }

    /// This client's own among the candidates of one rank. All count alike here, and by what they can do only in the draw
    /// within the subset: weighed twice, a machine of twice the power would get four times the calls (ServiceRouter §3.4.2 does not say where
    /// to weigh). Besides, a new weight then moves no connection.
    fn subset(&self, positions: &[usize], keep: usize) -> Vec<usize> {
        let node = |&position: &usize| (self.hash(position), FULL_WEIGHT);
        let nodes: Vec<_> = positions.iter().map(node).collect();
        rendezvous::subset(self.chooser, &nodes, keep).into_iter().map(|i| positions[i]).collect()
    }

    /// Gives indices by position. The subsets come first, so that the counts of what is called lie close together.
    fn assign(
        &self,
        endpoint_stats: &EndpointStats,
        tiers: &[Positions],
    ) -> (Vec<u32>, fairmesh_balancer::IndexPin) {
        let mut seen = vec![false; self.endpoints.len()];
        let mut order: Vec<usize> = Vec::with_capacity(self.endpoints.len());
        for position in tiers.iter().flat_map(|tier| &tier.candidates).copied().chain(0..self.endpoints.len())
        {
            if !std::mem::replace(&mut seen[position], true) {
                order.push(position);
            }
        }
        let (given, index_pin) =
            endpoint_stats.assign_indices(order.iter().map(|&position| &self.endpoints[position].instance));
        let mut indices = vec![0; self.endpoints.len()];
        for (position, index) in order.into_iter().zip(given) {
            indices[position] = index;
        }
        (indices, index_pin)
    }

    /// Tells the slots whom this client calls: those that it is nearest to, which share the calls.
    fn admit(
        &self,
        endpoint_stats: &EndpointStats,
        config: &BalancerConfig,
        indices: &[u32],
        tiers: &[Positions],
    ) {
        let nearest = tiers.first().map_or(&[][..], |tier| &tier.candidates);
        let member = |&position: &usize| (indices[position], self.powers[position]);
        endpoint_stats.set_members(&nearest.iter().map(member).collect::<Vec<_>>(), config);
    }

    fn targets(&self, indices: &[u32], previous: Option<&Upstream>) -> Box<[Option<Arc<EndpointTarget>>]> {
        let metric = match &self.facts.policy.balancing.signal {
            LoadSignal::Metric(name) => Some(Arc::from(name.as_str())),
            _ => None,
        };
        let by_latency = self.facts.policy.balancing.policy == BalancingPolicy::PeakEwma;
        let mut targets = vec![None; len(indices)];
        for (endpoint, &index) in self.endpoints.iter().zip(indices) {
            let target = EndpointTarget::new(
                (endpoint, self.facts.hosts),
                self.facts.service.protocol,
                metric.as_ref(),
                by_latency,
            );
            targets[index as usize] = match previous.and_then(|previous| previous.known(index)) {
                Some(same) if **same == target => Some(Arc::clone(same)),
                _ => Some(Arc::new(target)),
            };
        }
        targets.into_boxed_slice()
    }

    fn standings(&self, indices: &[u32], tiers: &[Positions]) -> Box<[Standing]> {
        let mut standings =
            vec![Standing { reach: Horizon::NOWHERE, in_subset: false, verdict: None }; len(indices)];
        for (endpoint, &index) in self.endpoints.iter().zip(indices) {
            let standing = &mut standings[index as usize];
            standing.reach = self.horizon.reach(&endpoint.location.region).clone();
            standing.verdict = self.facts.health.on(endpoint).cloned();
        }
        for &position in tiers.iter().flat_map(|tier| &tier.candidates) {
            standings[indices[position] as usize].in_subset = true;
        }
        standings.into_boxed_slice()
    }

    fn nothing(&self) -> Unroutable {
        if (0..self.endpoints.len()).any(|position| self.class(position).is_some()) {
            Unroutable::NoneInRegion { region: self.facts.location.region.clone() }
        } else {
            Unroutable::NoEndpoints
        }
    }

    fn kind(&self, indices: &[u32], tiers: Vec<Positions>) -> Kind {
        match self.facts.service.kind {
            ServiceKind::Replicated => {
                let member = |&position: &usize| (indices[position], self.powers[position]);
                let members = |positions: &[usize]| {
                    CandidateSet::new(&positions.iter().map(member).collect::<Vec<_>>())
                };
                let mut tiers = each(tiers, members);
                let nearest = if tiers.is_empty() {
                    Tier { rank: 0, of: 0, candidates: members(&[]) }
                } else {
                    tiers.remove(0)
                };
                Kind::Replicated { nearest, further: tiers.into_boxed_slice() }
            }
            ServiceKind::ConsistentHash => Kind::Hashed(
                each(tiers, |positions: &[usize]| {
                    let node = |&position: &usize| {
                        let weight = self.powers[position];
                        Node { hash: self.hash(position), weight, index: indices[position] }
                    };
                    let nodes: Box<[Node]> = positions.iter().map(node).collect();
                    let equal = nodes.windows(2).all(|pair| pair[0].weight == pair[1].weight);
                    Hashed { nodes, equal }
                })
                .into_boxed_slice(),
            ),
            ServiceKind::Sharded => {
                let nearest = tiers.first().map_or(&[][..], |tier| &tier.candidates);
                Kind::Sharded(self.facts.shards.map(|shards| self.sharding(shards, indices, nearest)))
            }
        }
    }

    fn sharding(&self, shards: &Arc<Shards>, indices: &[u32], nearest: &[usize]) -> Sharding {
        let known: HashMap<&str, usize> =
            self.endpoints.iter().enumerate().map(|(i, endpoint)| (endpoint.instance.as_str(), i)).collect();
        let roles: BTreeSet<&str> = shards.holdings().iter().map(|holding| holding.role).collect();
        // A name that is no role, which only a damaged list holds, is nobody's.
        let roles: Vec<Role> = roles.into_iter().filter_map(|role| Role::new(role).ok()).collect();
        let holder = |holding: crate::Holding<'_>| {
            let &position = known.get(holding.instance)?;
            let endpoint = self.endpoints[position];
            let class = Class::of_copy(self.class(position)?, holding.state)?;
            let rank = self.horizon.rank(class, self.horizon.reach(&endpoint.location.region))?;
            let role = roles.binary_search_by(|role| role.as_str().cmp(holding.role)).ok()? as u32;
            Some(Holder { rank, role, index: indices[position], weight: self.powers[position] })
        };
        let holders =
            shards.holdings().iter().map(|holding| holder(holding).unwrap_or(Holder::NOBODY)).collect();
        let nearest = nearest.iter().map(|&position| indices[position]).collect();
        Sharding { shards: Arc::clone(shards), holders, roles: roles.into_boxed_slice(), nearest }
    }
}

impl Holder {
    /// A holding at an endpoint that is not registered, or may not be called from here.
    pub(super) const NOBODY: Self = Self { rank: u32::MAX, role: u32::MAX, index: 0, weight: 0 };
}

/// How long a list by index must be.
fn len(indices: &[u32]) -> usize {
    indices.iter().max().map_or(0, |&last| last as usize + 1)
}

fn each<T>(tiers: Vec<Positions>, compile: impl Fn(&[usize]) -> T) -> Vec<Tier<T>> {
    let tier = |tier: Positions| Tier { rank: tier.rank, of: tier.of, candidates: compile(&tier.candidates) };
    tiers.into_iter().map(tier).collect()
}
