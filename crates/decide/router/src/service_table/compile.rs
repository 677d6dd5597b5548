mod region_tables;
mod unhealthy_regions;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use fairmesh_balancer::{BalancerConfig, CandidateSet, EndpointStats, rendezvous};
use fairmesh_model::{
    BalancingPolicy, CallerView, DefaultAuthorization, Endpoint, EndpointState, FULL_WEIGHT, InstanceId,
    Judgement, LoadSignal, Policy, Region, Role, ServiceKind, Traffic, VerdictEffect,
    arith::{hash_text, mix_pair},
};
use region_tables::UsableTable;

use super::{
    EndpointStatus, Hashed, Holder, Node, Selection, ServiceTable, Sharding, Tier,
    call_division::{Division, RingShares},
};
use crate::{
    AuthorizationTable, CompileInput, EndpointTarget, PickError, ShardTable,
    locality::{PreferenceClass, RegionRanks},
    route_actions::carry_over,
    routes::Routes,
};

pub(super) fn compile(
    input: &CompileInput<'_>,
    endpoint_stats: &Arc<EndpointStats>,
    previous: Option<&ServiceTable>,
    (routes, authorization): (Routes, Option<Arc<AuthorizationTable>>),
) -> ServiceTable {
    let locality = RegionRanks::new(input);
    let client_hash = mix_pair(input.client, hash_text(&input.name.to_string()));
    let (endpoints, callable) = partition_refused(input);
    let powers: Vec<u32> = endpoints.iter().map(|endpoint| input.hosts.power(endpoint)).collect();
    // A refused endpoint is no capacity, so it must not cause verdicts on other endpoints to be ignored.
    let Judgement { effects, contested, shares } =
        judge_endpoints(input, &locality, &endpoints[..callable], endpoint_stats);
    let compiler = Compiler {
        input,
        locality: &locality,
        client_hash,
        endpoints: &endpoints,
        powers: &powers,
        effects: &effects,
    };
    let (tiers, table_shares) = (compiler.tiers(), compiler.table_shares());
    let table = table_shares.as_deref().and_then(|shares| compiler.usable_table(shares));
    let preferred: Vec<&Positions> = table.iter().flat_map(UsableTable::tiers).chain(&tiers).collect();
    if previous.is_none() {
        // Each client starts the rotation at its own position; otherwise all would move in step.
        endpoint_stats.start_round_robin_at(client_hash as u32);
    }
    let config = BalancerConfig::new(&input.policy.balancing);
    let (indices, index_pin) = compiler.assign(endpoint_stats, &preferred);
    let targets = compiler.targets(&indices, previous);
    let statuses = compiler.statuses(&indices, &preferred);
    let no_endpoint_error = compiler.no_endpoint_error();
    compiler.admit(endpoint_stats, &config, &indices, &members(table.as_ref(), &tiers, locality.home()));
    let division = compiler.division(table.as_ref(), &shares, &indices);
    let selection = compiler.selection(&indices, tiers);
    ServiceTable {
        endpoint_stats: Arc::clone(endpoint_stats),
        pick_config: config.pick_config(),
        routes,
        bucket: carry_over(input.policy.limit, previous.and_then(|previous| previous.bucket.as_ref())),
        timeouts: input.policy.timeouts,
        last_resort: locality.last_resort(),
        division,
        selection,
        name: input.name.clone(),
        policy: without_routes(input.policy),
        authorization,
        protocol: input.service.protocol,
        client_hash,
        targets,
        statuses,
        no_endpoint_error,
        locality,
        refused: endpoints[callable..].iter().map(|endpoint| endpoint.instance.clone()).collect(),
        contested: contested.into_boxed_slice(),
        _index_pin: index_pin,
    }
}

/// Determines how this caller treats verdicts and expired leases.
pub(super) fn judge(input: &CompileInput<'_>, endpoint_stats: &EndpointStats) -> Judgement {
    let (endpoints, callable) = partition_refused(input);
    judge_endpoints(input, &RegionRanks::new(input), &endpoints[..callable], endpoint_stats)
}

fn judge_endpoints(
    input: &CompileInput<'_>,
    locality: &RegionRanks,
    endpoints: &[&Endpoint],
    endpoint_stats: &EndpointStats,
) -> Judgement {
    let level = |region: &Region| locality.rank(PreferenceClass::Serving, locality.distance(region));
    let evidence = |position: usize| {
        let index = endpoint_stats.index_of(&endpoints[position].instance)?;
        endpoint_stats.evidence(index, input.now)
    };
    input.health.judge(endpoints, input.hosts, CallerView { level: &level, evidence: &evidence })
}

/// Returns the endpoints that share this client's calls: those of the region table if there is one, otherwise those
/// of the lowest rank.
fn members(table: Option<&UsableTable<'_>>, tiers: &[Positions], home: &Region) -> Vec<usize> {
    match table {
        Some(table) => table.members(home).into_iter().collect(),
        None => tiers.first().map(|tier| tier.candidates.clone()).unwrap_or_default(),
    }
}

/// Returns the policy without the parts that are kept elsewhere:
/// - routes and authorization rules, which are compiled; uncompiled routes would take most of a small service's
///   memory
/// - region shares, which arrive as tables
fn without_routes(policy: &Policy) -> Policy {
    let Policy {
        routes: _,
        locality,
        balancing,
        timeouts,
        retries,
        limit,
        key,
        role,
        health_check,
        lookaside,
        traffic,
        authorization: _,
        mtls,
        local_transport,
        accept_routes_from,
        restated: _,
    } = policy;
    Policy {
        routes: Vec::new(),
        locality: locality.clone(),
        balancing: balancing.clone(),
        timeouts: *timeouts,
        retries: retries.clone(),
        limit: *limit,
        key: key.clone(),
        role: role.clone(),
        health_check: health_check.clone(),
        lookaside: lookaside.clone(),
        traffic: traffic.as_ref().map(|traffic| {
            Box::new(Traffic {
                planner: traffic.planner,
                mode: traffic.mode,
                shares: BTreeMap::new(),
                rings: traffic.rings.clone(),
                classes: traffic.classes.clone(),
                load: traffic.load.clone(),
            })
        }),
        authorization: None,
        mtls: *mtls,
        local_transport: *local_transport,
        accept_routes_from: accept_routes_from.clone(),
        restated: BTreeSet::new(),
    }
}

/// Compiles the authorization rules, if this process authorizes calls. The mesh's default is not part of a policy; it
/// is passed to each decision.
pub(super) fn authorization(input: &CompileInput<'_>) -> Option<Arc<AuthorizationTable>> {
    let (default, no_checkers) = (DefaultAuthorization::default(), Some(BTreeSet::new()));
    let compile = || Arc::new(AuthorizationTable::compile(input.policy, default, no_checkers));
    input.authorizes_callers.then(compile)
}

/// Returns each instance once, accepted endpoints first, together with the number of accepted ones. A refused record
/// never replaces an accepted record of the same name in another region.
fn partition_refused<'a>(input: &CompileInput<'a>) -> (Vec<&'a Endpoint>, usize) {
    let mut endpoints = unique(input.endpoints.iter().filter(|endpoint| !input.refuses(endpoint)));
    let callable = endpoints.len();
    let known: HashSet<&InstanceId> = endpoints.iter().map(|endpoint| &endpoint.instance).collect();
    let refused = input.endpoints.iter().filter(|endpoint| input.refuses(endpoint));
    let refused = unique(refused.filter(|endpoint| !known.contains(&endpoint.instance)));
    endpoints.extend(refused);
    (endpoints, callable)
}

/// Returns each instance once. An instance that moves to another region has two records; the record of the serving
/// one is used.
fn unique<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<&'a Endpoint> {
    let mut positions: HashMap<&InstanceId, usize> = HashMap::new();
    let mut unique: Vec<&Endpoint> = Vec::new();
    for endpoint in endpoints {
        let position = *positions.entry(&endpoint.instance).or_insert(unique.len());
        match unique.get_mut(position) {
            None => unique.push(endpoint),
            Some(other) if other.state != EndpointState::Serving => *other = endpoint,
            Some(_) => {}
        }
    }
    unique
}

/// A snapshot under construction. Endpoints are identified by their position in `endpoints` until they get indices.
struct Compiler<'a> {
    input: &'a CompileInput<'a>,
    locality: &'a RegionRanks,
    client_hash: u64,
    endpoints: &'a [&'a Endpoint],
    /// Capacity of each endpoint. Weights alone would load a slow machine as much as a fast one (Uber, zone weights
    /// and host-aware balancing).
    powers: &'a [u32],
    /// Effect of active health checks on each accepted endpoint. The endpoints beyond the end of this list are
    /// refused.
    effects: &'a [VerdictEffect],
}

/// Positions of the endpoints that share a rank, by preference.
type Positions = Tier<Vec<usize>>;

impl Compiler<'_> {
    fn class(&self, position: usize) -> Option<PreferenceClass> {
        PreferenceClass::of(self.endpoints[position].state, *self.effects.get(position)?)
    }

    fn rank(&self, position: usize) -> Option<u32> {
        let distance = self.locality.distance(&self.endpoints[position].location.region);
        self.locality.rank(self.class(position)?, distance)
    }

    /// Returns the division of calls among regions or rings, if any.
    fn division(
        &self,
        table: Option<&UsableTable<'_>>,
        shares: &[(u32, u32)],
        indices: &[u32],
    ) -> Option<Box<Division>> {
        let division = match table {
            Some(table) => Some(Division::Table(self.compiled_table(table, indices))),
            None => RingShares::new(shares).map(Division::Rings),
        };
        division.map(Box::new)
    }

    /// Hash of an endpoint for rendezvous hashing.
    fn hash(&self, position: usize) -> u64 {
        hash_text(self.endpoints[position].instance.as_str())
    }

    /// Returns the callable endpoints by rank. For replicated services, these are only this client's subset of each
    /// rank (ServiceRouter §3.4.2).
    fn tiers(&self) -> Vec<Positions> {
        let mut ranks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for position in 0..self.endpoints.len() {
            if let Some(rank) = self.rank(position) {
                ranks.entry(rank).or_default().push(position);
            }
        }
        let keep = match self.input.service.kind {
            ServiceKind::Replicated => self.input.policy.balancing.subset as usize,
            ServiceKind::Sharded | ServiceKind::ConsistentHash => 0,
        };
        let tier = |(rank, positions): (u32, Vec<usize>)| {
            let candidates = self.subset(&positions, keep);
            Tier { rank, total: positions.len() as u32, candidates }
        };
        ranks.into_iter().map(tier).collect()
    }

    /// Returns this client's subset of the candidates of one rank. All candidates count alike; capacity counts only in
    /// the draw within the subset. If it counted twice, a machine with double capacity would get four times the calls
    /// (ServiceRouter §3.4.2 does not say where to apply weights). This way, a changed weight also moves no
    /// connections.
    fn subset(&self, positions: &[usize], keep: usize) -> Vec<usize> {
        let node = |&position: &usize| (self.hash(position), FULL_WEIGHT);
        let nodes: Vec<_> = positions.iter().map(node).collect();
        rendezvous::subset(self.client_hash, &nodes, keep).into_iter().map(|i| positions[i]).collect()
    }

    /// Assigns indices by position. Subsets come first, so that the counters used by calls are adjacent in memory.
    fn assign(
        &self,
        endpoint_stats: &EndpointStats,
        tiers: &[&Positions],
    ) -> (Vec<u32>, fairmesh_balancer::IndexPin) {
        let mut seen = vec![false; self.endpoints.len()];
        let mut order: Vec<usize> = Vec::with_capacity(self.endpoints.len());
        for position in tiers.iter().flat_map(|tier| &tier.candidates).copied().chain(0..self.endpoints.len())
        {
            if !std::mem::replace(&mut seen[position], true) {
                order.push(position);
            }
        }
        let process = |&position: &usize| {
            let endpoint = self.endpoints[position];
            (&endpoint.instance, endpoint.incarnation())
        };
        let (given, index_pin) = endpoint_stats.assign_indices(order.iter().map(process));
        let mut indices = vec![0; self.endpoints.len()];
        for (position, index) in order.into_iter().zip(given) {
            indices[position] = index;
        }
        (indices, index_pin)
    }

    /// Registers the endpoints that share this client's calls in the statistics.
    fn admit(
        &self,
        endpoint_stats: &EndpointStats,
        config: &BalancerConfig,
        indices: &[u32],
        members: &[usize],
    ) {
        let member = |&position: &usize| (indices[position], self.powers[position]);
        endpoint_stats.set_members(&members.iter().map(member).collect::<Vec<_>>(), config);
    }

    fn targets(
        &self,
        indices: &[u32],
        previous: Option<&ServiceTable>,
    ) -> Box<[Option<Arc<EndpointTarget>>]> {
        let metric = match &self.input.policy.balancing.signal {
            LoadSignal::Metric(name) => Some(Arc::from(name.as_str())),
            _ => None,
        };
        let by_latency = self.input.policy.balancing.policy == BalancingPolicy::PeakEwma;
        let mut targets = vec![None; len(indices)];
        for (endpoint, &index) in self.endpoints.iter().zip(indices) {
            let target = EndpointTarget::new(
                (endpoint, self.input.hosts),
                (self.input.name, self.input.service),
                self.input.policy.mtls,
                metric.as_ref(),
                by_latency,
            );
            targets[index as usize] = match previous.and_then(|previous| previous.find_target(index)) {
                Some(same) if **same == target => Some(Arc::clone(same)),
                _ => Some(Arc::new(target)),
            };
        }
        targets.into_boxed_slice()
    }

    fn statuses(&self, indices: &[u32], tiers: &[&Positions]) -> Box<[EndpointStatus]> {
        let mut statuses =
            vec![
                EndpointStatus { distance: RegionRanks::UNREACHABLE, in_subset: false, verdict: None };
                len(indices)
            ];
        for (endpoint, &index) in self.endpoints.iter().zip(indices) {
            let status = &mut statuses[index as usize];
            status.distance = self.locality.distance(&endpoint.location.region).clone();
            status.verdict = self.input.health.on(endpoint).cloned();
        }
        for &position in tiers.iter().flat_map(|tier| &tier.candidates) {
            statuses[indices[position] as usize].in_subset = true;
        }
        statuses.into_boxed_slice()
    }

    fn no_endpoint_error(&self) -> PickError {
        if (0..self.endpoints.len()).any(|position| self.class(position).is_some()) {
            return PickError::NoneInRegion { region: self.input.location.region.clone() };
        }
        match self.endpoints.len() - self.effects.len() {
            0 => PickError::NoEndpoints,
            count => PickError::PlaintextRefused { count },
        }
    }

    fn selection(&self, indices: &[u32], tiers: Vec<Positions>) -> Selection {
        match self.input.service.kind {
            ServiceKind::Replicated => {
                let member = |&position: &usize| (indices[position], self.powers[position]);
                let members = |positions: &[usize]| {
                    CandidateSet::new(&positions.iter().map(member).collect::<Vec<_>>())
                };
                let mut tiers = map_tiers(tiers, members);
                let nearest = if tiers.is_empty() {
                    Tier { rank: 0, total: 0, candidates: members(&[]) }
                } else {
                    tiers.remove(0)
                };
                Selection::Replicated { nearest, further: tiers.into_boxed_slice() }
            }
            ServiceKind::ConsistentHash => Selection::Hashed(
                map_tiers(tiers, |positions: &[usize]| self.hashed(positions, indices)).into_boxed_slice(),
            ),
            ServiceKind::Sharded => {
                let nearest = tiers.first().map_or(&[][..], |tier| &tier.candidates);
                Selection::Sharded(self.input.shards.map(|shards| self.sharding(shards, indices, nearest)))
            }
        }
    }

    fn hashed(&self, positions: &[usize], indices: &[u32]) -> Hashed {
        let node = |&position: &usize| {
            let weight = self.powers[position];
            Node { hash: self.hash(position), weight, index: indices[position] }
        };
        let nodes: Box<[Node]> = positions.iter().map(node).collect();
        let equal = nodes.windows(2).all(|pair| pair[0].weight == pair[1].weight);
        Hashed { nodes, equal }
    }

    fn sharding(&self, shards: &Arc<ShardTable>, indices: &[u32], nearest: &[usize]) -> Sharding {
        let known: HashMap<&str, usize> =
            self.endpoints.iter().enumerate().map(|(i, endpoint)| (endpoint.instance.as_str(), i)).collect();
        let roles: BTreeSet<&str> = shards.holdings().iter().map(|holding| holding.role).collect();
        // Only a damaged list contains an invalid role, which matches no call.
        let roles: Vec<Role> = roles.into_iter().filter_map(|role| Role::new(role).ok()).collect();
        let holder = |holding: crate::Holding<'_>| {
            let &position = known.get(holding.instance)?;
            let endpoint = self.endpoints[position];
            let class = PreferenceClass::of_copy(self.class(position)?, holding.state)?;
            let rank = self.locality.rank(class, self.locality.distance(&endpoint.location.region))?;
            let role = roles.binary_search_by(|role| role.as_str().cmp(holding.role)).ok()? as u32;
            Some(Holder { rank, role, index: indices[position], weight: self.powers[position] })
        };
        let holders =
            shards.holdings().iter().map(|holding| holder(holding).unwrap_or(Holder::UNAVAILABLE)).collect();
        let nearest = nearest.iter().map(|&position| indices[position]).collect();
        Sharding { shards: Arc::clone(shards), holders, roles: roles.into_boxed_slice(), nearest }
    }
}

impl Holder {
    /// A holding whose endpoint is not registered, or may not be called by this caller.
    pub(super) const UNAVAILABLE: Self = Self { rank: u32::MAX, role: u32::MAX, index: 0, weight: 0 };
}

/// Number of entries of a list that is indexed by these indices.
fn len(indices: &[u32]) -> usize {
    indices.iter().max().map_or(0, |&last| last as usize + 1)
}

fn map_tiers<T>(tiers: Vec<Positions>, compile: impl Fn(&[usize]) -> T) -> Vec<Tier<T>> {
    let tier =
        |tier: Positions| Tier { rank: tier.rank, total: tier.total, candidates: compile(&tier.candidates) };
    tiers.into_iter().map(tier).collect()
}
