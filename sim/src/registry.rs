//! The simulated registry: all endpoints, and the ones that each caller needs to know.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_balancer::rendezvous;
use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, HostType, Hosts, InstanceId, Invalid, Location, Policy, Protocol,
    Region, RegionTable, Regions, RoundTrips, Service, ServiceKind, ServiceName, Verdicts,
    arith::{hash_text, mix_pair},
};
use fairmesh_router::{CompileInput, EndpointStats, ServiceTable, TableInput};

use crate::endpoint_connection::EndpointConnection;

/// The records of the simulated services.
#[derive(Debug)]
pub(crate) struct Registry {
    services: Vec<RegisteredService>,
    /// Policy of all simulated services.
    policy: Policy,
    regions: Regions,
    round_trips: RoundTrips,
    /// Host records. They are always empty, because a scenario expresses hosts by the weights of their endpoints.
    hosts: Hosts,
    health: Verdicts,
    /// Entries by server.
    entries: Vec<Entry>,
    /// Version of the registry, incremented with each change.
    version: u64,
}

#[derive(Debug)]
struct RegisteredService {
    name: ServiceName,
    /// Salt of callers' subsets, as in the router.
    salt: u64,
    service: Service,
    /// Listed endpoints, by state and region.
    groups: Vec<EndpointGroup>,
}

#[derive(Debug)]
struct Entry {
    endpoint: Endpoint,
    hash: u64,
    /// Position of the service that the server belongs to.
    service: u16,
    region: u16,
    /// Number of earlier instances that ran as this server.
    generation: u32,
    listed: bool,
}

/// Endpoints of one region that are in the same state; for a given caller, they have the same rank.
#[derive(Debug, Default)]
struct EndpointGroup {
    nodes: Vec<(u64, u32)>,
    servers: Vec<u32>,
}

/// A server to add.
#[derive(Clone, Debug)]
pub(crate) struct NewServer<'a> {
    pub(crate) group: &'a str,
    /// Position of its service.
    pub(crate) service: u16,
    pub(crate) region: u16,
    pub(crate) location: Region,
    pub(crate) host: Option<&'a str>,
    pub(crate) weight: u32,
    pub(crate) listed: bool,
}

impl Registry {
    /// Creates a registry of services, given by position, without servers.
    pub(crate) fn new(services: &[ServiceName], policy: Policy, round_trips: RoundTrips) -> Self {
        let service = |name: &ServiceName| RegisteredService {
            name: name.clone(),
            salt: hash_text(&name.to_string()),
            service: Service {
                kind: ServiceKind::Replicated,
                protocol: Protocol::Http1,
                virtual_address: None,
                identity: None,
            },
            groups: Vec::new(),
        };
        Self {
            services: services.iter().map(service).collect(),
            policy,
            regions: Regions::default(),
            round_trips,
            hosts: Hosts::default(),
            health: Verdicts::default(),
            entries: Vec::new(),
            version: 0,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds the next server.
    pub(crate) fn add(&mut self, new: &NewServer<'_>) -> Result<(), Invalid> {
        let number = self.entries.len() as u32;
        let instance = InstanceId::new(format!("{}-{number}", new.group))?;
        let host_type = new.host.map(HostType::new).transpose()?;
        let [_, a, b, c] = number.to_be_bytes();
        let endpoint = Endpoint {
            mtls: false,
            instance,
            address: SocketAddr::from(([10, a, b, c], 80)),
            location: Location { host_type, ..Location::in_region(new.location.clone()) },
            state: EndpointState::Serving,
            weight: new.weight,
            lease: None,
            labels: BTreeMap::new(),
        };
        let hash = hash_text(endpoint.instance.as_str());
        self.entries.push(Entry {
            endpoint,
            hash,
            service: new.service,
            region: new.region,
            generation: 0,
            listed: new.listed,
        });
        Ok(())
    }

    /// Power of each serving endpoint of a service, by region.
    pub(crate) fn serving(&self, service: u16, regions: usize) -> Vec<Vec<u32>> {
        let mut powers = vec![Vec::new(); regions];
        for entry in self.entries.iter().filter(|entry| entry.service == service) {
            if entry.listed && entry.endpoint.state == EndpointState::Serving {
                powers[usize::from(entry.region)].push(entry.endpoint.weight);
            }
        }
        powers
    }

    /// Number of services.
    pub(crate) fn services(&self) -> usize {
        self.services.len()
    }

    /// Position of a server's service.
    pub(crate) fn service_of(&self, server: u32) -> u16 {
        self.entries[server as usize].service
    }

    /// Whether a server is listed as serving.
    pub(crate) fn serves(&self, server: u32) -> bool {
        let entry = &self.entries[server as usize];
        entry.listed && entry.endpoint.state == EndpointState::Serving
    }

    /// Lists a server as being in this state, or removes it if `state` is `None`.
    pub(crate) fn list(&mut self, server: u32, state: Option<EndpointState>) {
        let entry = &mut self.entries[server as usize];
        entry.listed = state.is_some();
        if let Some(state) = state {
            entry.endpoint.state = state;
        }
    }

    /// Replaces the server's instance, as a deployment does.
    pub(crate) fn replace_instance(&mut self, server: u32) {
        let entry = &mut self.entries[server as usize];
        let name = entry.endpoint.instance.as_str();
        let stem = name.split('.').next().unwrap_or(name);
        entry.generation += 1;
        if let Ok(instance) = InstanceId::new(format!("{stem}.{}", entry.generation)) {
            entry.hash = hash_text(instance.as_str());
            entry.endpoint.instance = instance;
        }
    }

    /// Publishes the changes to callers that refresh from now on.
    pub(crate) fn publish(&mut self) {
        self.version += 1;
        let mut groups: BTreeMap<(u16, &str, u16), EndpointGroup> = BTreeMap::new();
        for (server, entry) in (0..).zip(&self.entries).filter(|(_, entry)| entry.listed) {
            let key = (entry.service, entry.endpoint.state.as_str(), entry.region);
            let group = groups.entry(key).or_default();
            // Subsets ignore weights, as in the router.
            group.nodes.push((entry.hash, FULL_WEIGHT));
            group.servers.push(server);
        }
        self.services.iter_mut().for_each(|service| service.groups.clear());
        for ((service, ..), group) in groups {
            self.services[usize::from(service)].groups.push(group);
        }
    }

    /// The servers that may be in this caller's subsets: those in the subset of each group.
    ///
    /// The ring of a group, and which other groups share the ring, make no difference: the first k of a union are among
    /// the first k of its parts. A caller that knows only these therefore decides like one that knows all, and 3,000
    /// callers of 3,000 servers fit into memory.
    fn relevant_servers(&self, service: u16, client: u64, table: Option<&RegionTable>) -> Vec<u32> {
        let service = &self.services[usize::from(service)];
        // Salted as the router salts its caller's hash.
        let chooser = mix_pair(client, service.salt);
        let wider = table.and_then(|table| table.subsets.values().max()).copied().unwrap_or_default();
        let keep = match self.policy.balancing.subset {
            0 => 0,
            own => own.max(wider) as usize,
        };
        let mut servers = Vec::new();
        for group in &service.groups {
            if keep == 0 || group.nodes.len() <= keep {
                servers.extend_from_slice(&group.servers);
            } else {
                let subset = rendezvous::subset(chooser, &group.nodes, keep);
                servers.extend(subset.into_iter().map(|position| group.servers[position]));
            }
        }
        servers.sort_unstable();
        servers
    }

    fn relevant_endpoints(&self, service: u16, client: u64, table: Option<&RegionTable>) -> Vec<Endpoint> {
        let servers = self.relevant_servers(service, client, table).into_iter();
        servers.map(|server| self.entries[server as usize].endpoint.clone()).collect()
    }

    /// The records of a service for a caller that knows these endpoints.
    fn compile_input<'a>(
        &'a self,
        service: u16,
        endpoints: &'a [Endpoint],
        caller: (&'a Location, u64),
        table: Option<&'a RegionTable>,
    ) -> CompileInput<'a> {
        let service = &self.services[usize::from(service)];
        let (location, client) = caller;
        CompileInput {
            name: &service.name,
            service: &service.service,
            policy: &self.policy,
            endpoints,
            shards: None,
            location,
            regions: &self.regions,
            round_trips: &self.round_trips,
            table: table.map(|table| TableInput { table, age: Duration::ZERO }),
            hosts: &self.hosts,
            health: &self.health,
            // Simulated servers are judged only by their callers.
            now: 0,
            // Simulated policies have no routes.
            client_id: "",
            client,
            requires_mtls: false,
            authorizes_callers: false,
        }
    }
}

/// What one caller knows about a service.
#[derive(Debug)]
pub(crate) struct DiscoveredService {
    /// Position of the service.
    service: u16,
    /// The compiled snapshot.
    pub(crate) upstream: ServiceTable,
    /// Statistics of endpoints, shared by all snapshots.
    pub(crate) endpoint_stats: Arc<EndpointStats>,
    /// The region table of the caller, if there is one.
    table: Option<RegionTable>,
    /// Servers by endpoint index.
    servers: Vec<u32>,
    /// Connections to endpoints called before, by endpoint index.
    connections: Vec<Option<EndpointConnection>>,
    endpoints: Vec<Endpoint>,
    version: u64,
}

impl DiscoveredService {
    /// The state of a caller after subscribing.
    pub(crate) fn subscribe(registry: &Registry, service: u16, location: &Location, client: u64) -> Self {
        let endpoints = registry.relevant_endpoints(service, client, None);
        let endpoint_stats = Arc::default();
        let upstream = ServiceTable::compile(
            &registry.compile_input(service, &endpoints, (location, client), None),
            &endpoint_stats,
            None,
        );
        let servers = servers_of(&upstream);
        Self {
            service,
            table: None,
            upstream,
            endpoint_stats,
            servers,
            connections: Vec::new(),
            endpoints,
            version: registry.version,
        }
    }

    /// Position of the service.
    pub(crate) fn position(&self) -> u16 {
        self.service
    }

    /// Applies the registry changes since the last refresh.
    pub(crate) fn refresh(&mut self, registry: &Registry, location: &Location, client: u64) {
        if self.version == registry.version {
            return;
        }
        self.version = registry.version;
        let endpoints = registry.relevant_endpoints(self.service, client, self.table.as_ref());
        if endpoints != self.endpoints {
            self.endpoints = endpoints;
            self.compile(registry, location, client);
        }
    }

    /// Uses another region table from now on.
    pub(crate) fn follow(
        &mut self,
        table: RegionTable,
        registry: &Registry,
        location: &Location,
        client: u64,
    ) {
        let widens = self.table.as_ref().is_none_or(|before| before.subsets != table.subsets);
        self.table = Some(table);
        if widens {
            self.endpoints = registry.relevant_endpoints(self.service, client, self.table.as_ref());
        }
        self.compile(registry, location, client);
    }

    fn compile(&mut self, registry: &Registry, location: &Location, client: u64) {
        let input =
            registry.compile_input(self.service, &self.endpoints, (location, client), self.table.as_ref());
        let upstream = ServiceTable::compile(&input, &self.endpoint_stats, Some(&self.upstream));
        self.close_removed(&upstream);
        self.upstream = upstream;
        self.servers = servers_of(&self.upstream);
    }

    /// Drops the connections to endpoints that the next snapshot does not contain.
    fn close_removed(&mut self, next: &ServiceTable) {
        let instance = |upstream: &ServiceTable, index| {
            upstream.find_target(index).map(|target| target.instance.clone())
        };
        for (index, connection) in (0..).zip(&mut self.connections) {
            if instance(&self.upstream, index) != instance(next, index) {
                *connection = None;
            }
        }
    }

    /// The connection to the endpoint at an index, if it was called.
    #[inline]
    pub(crate) fn connection(&self, index: u32) -> Option<&EndpointConnection> {
        self.connections.get(index as usize)?.as_ref()
    }

    pub(crate) fn connection_mut(&mut self, index: u32) -> Option<&mut EndpointConnection> {
        self.connections.get_mut(index as usize)?.as_mut()
    }

    /// Records that an attempt at an endpoint index ended, with or without a response. The index belongs to `server`.
    #[inline]
    pub(crate) fn record_attempt(&mut self, index: u32, server: u32, has_response: bool, now: u64) {
        let index = index as usize;
        if self.servers.get(index) != Some(&server) {
            return;
        }
        if self.connections.len() <= index {
            self.connections.resize_with(self.servers.len(), || None);
        }
        let connection = self.connections[index].get_or_insert_default();
        match has_response {
            true => connection.mark_used(now),
            false => connection.close(),
        }
    }

    /// The server at the endpoint index that this caller picked.
    #[inline]
    pub(crate) fn server(&self, index: u32) -> u32 {
        self.servers[index as usize]
    }
}

/// Reads the server numbers, which the endpoints' addresses contain.
fn servers_of(upstream: &ServiceTable) -> Vec<u32> {
    let mut servers = Vec::new();
    for candidate in upstream.candidates() {
        let index = candidate.index as usize;
        if servers.len() <= index {
            servers.resize(index + 1, u32::MAX);
        }
        if let SocketAddr::V4(address) = candidate.target.address {
            let [_, a, b, c] = address.ip().octets();
            servers[index] = u32::from_be_bytes([0, a, b, c]);
        }
    }
    servers
}

#[cfg(test)]
mod tests {
    use fairmesh_router::PickParams;

    use super::*;

    fn registry(servers: u32, subset: u32) -> Registry {
        let mut policy = Policy::default();
        policy.balancing.subset = subset;
        let mut round_trips = RoundTrips::default();
        let regions = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let trip = std::time::Duration::from_millis(90);
        round_trips.set(regions[0].clone(), regions[1].clone(), trip);
        let services = [ServiceName::new(crate::SERVICE).unwrap()];
        let mut registry = Registry::new(&services, policy, round_trips);
        for server in 0..servers {
            let region = (server % 2) as u16;
            let location = regions[region as usize].clone();
            let weight = 1000 + 100 * (server % 7);
            let new =
                NewServer { group: "s", service: 0, region, location, host: None, weight, listed: true };
            registry.add(&new).unwrap();
        }
        registry.publish();
        registry
    }

    /// The router's snapshot of all endpoints.
    fn full(registry: &Registry, location: &Location, client: u64) -> ServiceTable {
        let all: Vec<Endpoint> = registry.entries.iter().map(|entry| entry.endpoint.clone()).collect();
        let input = registry.compile_input(0, &all, (location, client), None);
        ServiceTable::compile(&input, &Arc::default(), None)
    }

    #[test]
    fn simulated_caller_with_only_its_subset_decides_like_one_with_all() {
        let mut registry = registry(200, 20);
        // Some are draining and some lost, so that several tiers hold endpoints of both regions.
        for server in 0..40 {
            let state = if server < 20 { EndpointState::Draining } else { EndpointState::Lost };
            registry.list(server, Some(state));
        }
        registry.publish();
        let location = Location::in_region(Region::new("eu").unwrap());
        for client in 0..20 {
            let service = DiscoveredService::subscribe(&registry, 0, &location, client);
            assert!(service.endpoints.len() <= 6 * 20, "{}", service.endpoints.len());
            let full = full(&registry, &location, client);
            let subset = |upstream: &ServiceTable| {
                let candidates = upstream.candidates().filter(|candidate| candidate.in_subset);
                let mut names: Vec<_> =
                    candidates.map(|candidate| candidate.target.instance.clone()).collect();
                names.sort();
                names
            };
            assert_eq!(subset(&service.upstream), subset(&full));
            for seed in 0..200 {
                let ask = PickParams::default();
                let subset_pick = service.upstream.pick(&ask, 0, seed).unwrap();
                let full_pick = full.pick(&ask, 0, seed).unwrap();
                let target = &full.target(full_pick.index).address;
                assert_eq!(
                    &service.upstream.target(subset_pick.index).address,
                    target,
                    "client {client}, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn refreshed_simulated_caller_maps_new_instances_to_servers() {
        let mut registry = registry(10, 0);
        let location = Location::in_region(Region::new("eu").unwrap());
        let mut service = DiscoveredService::subscribe(&registry, 0, &location, 1);
        registry.replace_instance(4);
        registry.list(6, None);
        registry.publish();
        service.refresh(&registry, &location, 1);
        let mut seen: Vec<(String, u32)> = service
            .upstream
            .candidates()
            .map(|candidate| (candidate.target.instance.to_string(), service.server(candidate.index)))
            .collect();
        seen.sort();
        assert_eq!(seen.len(), 9);
        assert!(seen.contains(&("s-4.1".to_owned(), 4)));
        assert!(!seen.iter().any(|(_, server)| *server == 6));
    }
}
