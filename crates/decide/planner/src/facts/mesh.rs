use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{
    Endpoint, EndpointState, Hosts, MeasuredDistances, Region, Regions, RoundTrips, ServiceKind, ServiceName,
};

use super::{
    PolicyFacts, ServiceFacts, ServiceReports, StoredDrain, StoredTable, TopologyFacts,
    policies::WrittenPolicies,
};
use crate::lone_shards::LoneShards;

/// Facts of all services and of the topology, changed one record at a time.
///
/// Readers get the facts of a service as an immutable snapshot. A change copies them only while a reader holds them, and
/// gives them a greater version, so that a planner looks at nothing that is as it was. Reading all records again in each
/// round was rejected: it costs as much as the mesh is large, not as much as changed.
#[derive(Clone, Debug, Default)]
pub struct MeshFacts {
    version: u64,
    services: BTreeMap<ServiceName, Arc<ServiceFacts>>,
    pub(super) policies: WrittenPolicies,
    planned: Arc<BTreeSet<ServiceName>>,
    /// Services without a planner that have tables of one.
    left_over: BTreeSet<ServiceName>,
    not_understood: BTreeSet<ServiceName>,
    topology: Arc<TopologyFacts>,
    /// Services with endpoints in a region, in whatever state.
    by_region: BTreeMap<Region, BTreeSet<ServiceName>>,
}

impl MeshFacts {
    /// The facts of a service; `None` if nothing is known of it.
    pub fn service(&self, name: &ServiceName) -> Option<Arc<ServiceFacts>> {
        self.services.get(name).cloned()
    }

    /// The services whose policies ask for a planner.
    pub fn planned(&self) -> Arc<BTreeSet<ServiceName>> {
        Arc::clone(&self.planned)
    }

    /// Services whose policies ask for no planner and that have tables of one, with their facts.
    pub fn left_over(&self) -> impl Iterator<Item = (&ServiceName, &Arc<ServiceFacts>)> {
        self.left_over.iter().filter_map(|name| Some((name, self.services.get(name)?)))
    }

    /// Services whose policies divide calls in a way that this release does not know.
    pub fn not_understood(&self) -> impl Iterator<Item = &ServiceName> {
        self.not_understood.iter()
    }

    /// The version of the last change of any fact.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Regions, distances and drains.
    pub fn topology(&self) -> Arc<TopologyFacts> {
        Arc::clone(&self.topology)
    }

    /// Regions that a topology declares, or that have endpoints.
    pub fn regions(&self) -> BTreeSet<Region> {
        self.by_region.keys().chain(self.topology.regions.regions.keys()).cloned().collect()
    }

    /// Whether a topology declares a region, or it has endpoints.
    pub fn has_region(&self, region: &Region) -> bool {
        self.by_region.contains_key(region) || self.topology.regions.regions.contains_key(region)
    }

    /// Services with a serving endpoint in a region, in the order of names.
    pub fn serving_in(&self, region: &Region) -> impl Iterator<Item = (&ServiceName, &ServiceFacts)> {
        let names = self.by_region.get(region).into_iter().flatten();
        let facts = names.filter_map(|name| Some((name, &**self.services.get(name)?)));
        let region = region.clone();
        facts.filter(move |(_, facts)| facts.serving_in(&region) > 0)
    }

    /// Takes the policy of a service, with the defaults that complete it.
    pub(super) fn put_policy_in_force(&mut self, service: &ServiceName, policy: PolicyFacts) {
        let PolicyFacts { traffic, not_understood, local_only, zone_first, subset, .. } = policy;
        match not_understood {
            true => self.not_understood.insert(service.clone()),
            false => self.not_understood.remove(service),
        };
        if traffic.is_planned() != self.planned.contains(service) {
            let planned = Arc::make_mut(&mut self.planned);
            match traffic.is_planned() {
                true => planned.insert(service.clone()),
                false => planned.remove(service),
            };
        }
        self.change(service, |facts| {
            if !traffic.is_planned() {
                facts.reports = ServiceReports::default();
            }
            (facts.traffic, facts.not_understood) = (traffic, not_understood);
            (facts.local_only, facts.zone_first, facts.subset) = (local_only, zone_first, subset);
        });
    }

    /// A service is declared as one of this kind, or is removed: then it is of the default kind.
    pub fn set_kind(&mut self, service: &ServiceName, kind: ServiceKind) {
        if self.services.get(service).map_or(ServiceKind::default(), |facts| facts.kind) != kind {
            self.change(service, |facts| facts.kind = kind);
        }
    }

    /// An endpoint of a service is written over the one before it, is new, or is removed.
    pub fn set_endpoint(
        &mut self,
        service: &ServiceName,
        before: Option<&Endpoint>,
        after: Option<&Endpoint>,
    ) {
        let topology = self.topology();
        let part = |endpoint: &Endpoint| {
            let power = (endpoint.state == EndpointState::Serving).then(|| topology.hosts.power(endpoint));
            (endpoint.location.region.clone(), endpoint.location.zone.clone(), power)
        };
        let (before, after) = (before.map(part), after.map(part));
        // A renewed lease, an address or a label is none of the planner's.
        if before == after {
            return;
        }
        self.change(service, |facts| {
            if let Some((region, zone, power)) = &after {
                facts.endpoints.entry(region.clone()).or_default().add(zone.as_ref(), *power);
            }
            if let Some((region, zone, power)) = &before
                && let Some(endpoints) = facts.endpoints.get_mut(region)
            {
                endpoints.remove(zone.as_ref(), *power);
                if endpoints.is_empty() {
                    facts.endpoints.remove(region);
                }
            }
        });
        for (region, ..) in before.iter().chain(&after) {
            self.index_region(service, region);
        }
    }

    /// A region table is written, or removed.
    pub fn set_table(&mut self, service: &ServiceName, from: Region, table: Option<StoredTable>) {
        self.change(service, |facts| match table {
            Some(table) => drop(facts.tables.insert(from, table)),
            None => drop(facts.tables.remove(&from)),
        });
    }

    /// The shards of a service without a copy in another region are others.
    pub fn set_lone_shards(&mut self, service: &ServiceName, lone: Arc<LoneShards>) {
        if self.services.get(service).is_some_and(|facts| facts.lone_shards != lone) {
            self.change(service, |facts| facts.lone_shards = lone);
        }
    }

    /// A drain of a region is written, or removed.
    pub fn set_drain(&mut self, region: Region, drain: Option<StoredDrain>) {
        self.change_topology(|topology| match drain {
            Some(drain) => drop(topology.drains.insert(region, drain)),
            None => drop(topology.drains.remove(&region)),
        });
    }

    /// The declared regions are others.
    pub fn set_regions(&mut self, regions: Regions) {
        self.change_topology(|topology| topology.regions = regions);
    }

    /// The declared round trips are others.
    pub fn set_round_trips(&mut self, declared: RoundTrips) {
        self.change_topology(|topology| topology.round_trips.set_declared(declared));
    }

    /// A region has measured its distances again, or they are removed.
    pub fn set_measured(&mut self, from: Region, distances: Option<MeasuredDistances>) {
        self.change_topology(|topology| {
            topology.round_trips.set_measured(from, distances);
        });
    }

    /// The speeds of hosts are others: the endpoints of each service in `endpoints` are added up again.
    pub fn set_hosts<E>(&mut self, hosts: Hosts, endpoints: impl Fn(&ServiceName) -> E)
    where
        E: IntoIterator<Item = Endpoint>,
    {
        self.change_topology(|topology| topology.hosts = hosts);
        let services: Vec<ServiceName> = self.by_region.values().flatten().cloned().collect();
        self.by_region.clear();
        for service in services.into_iter().collect::<BTreeSet<_>>() {
            self.change(&service, |facts| facts.endpoints.clear());
            for endpoint in endpoints(&service) {
                self.set_endpoint(&service, None, Some(&endpoint));
            }
        }
    }

    /// Takes the reports on a service, unless it has no planner. If they are those of before, and only older, it keeps its
    /// version.
    pub fn set_reports(&mut self, service: &ServiceName, reports: ServiceReports) {
        if !self.planned.contains(service) {
            return;
        }
        match self.services.get_mut(service) {
            Some(facts) if reports.repeats(&facts.reports) => Arc::make_mut(facts).reports = reports,
            _ => self.change(service, |facts| facts.reports = reports),
        }
    }

    /// Forgets all facts. Versions go on, so that facts that are set again are seen as changed.
    pub fn clear(&mut self) {
        *self = Self { version: self.version, ..Self::default() };
        self.change_topology(|_| {});
    }

    fn change(&mut self, service: &ServiceName, change: impl FnOnce(&mut ServiceFacts)) {
        self.version += 1;
        let facts = Arc::make_mut(self.services.entry(service.clone()).or_default());
        change(facts);
        facts.version = self.version;
        match facts.has_leftovers() {
            true => self.left_over.insert(service.clone()),
            false => self.left_over.remove(service),
        };
        if facts.is_empty() {
            self.services.remove(service);
        }
    }

    /// Notes whether a service has endpoints in a region.
    fn index_region(&mut self, service: &ServiceName, region: &Region) {
        let has_endpoints =
            self.services.get(service).is_some_and(|facts| facts.endpoints.contains_key(region));
        let services = self.by_region.entry(region.clone()).or_default();
        match has_endpoints {
            true => services.insert(service.clone()),
            false => services.remove(service),
        };
        if services.is_empty() {
            self.by_region.remove(region);
        }
    }

    fn change_topology(&mut self, change: impl FnOnce(&mut TopologyFacts)) {
        self.version += 1;
        let topology = Arc::make_mut(&mut self.topology);
        change(topology);
        topology.version = self.version;
    }
}

#[cfg(test)]
mod tests;
