//! The registry as the simulation has it: which endpoints there are, and which of them a caller has to be told.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use fairmesh_balancer::rendezvous;
use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, HostType, Hosts, InstanceId, Invalid, Location, Policy, Protocol,
    Region, Regions, RoundTrips, Service, ServiceKind, ServiceName, Verdicts,
    arith::{hash_text, mix_pair},
};
use fairmesh_router::{EndpointStats, Facts, Upstream};

use crate::lane::Lane;

/// What production knows of the service that is simulated.
#[derive(Debug)]
pub(crate) struct Directory {
    name: ServiceName,
    service: Service,
    policy: Policy,
    regions: Regions,
    round_trips: RoundTrips,
    /// Of no types: a scenario's hosts speak through the weights of their endpoints.
    hosts: Hosts,
    health: Verdicts,
    /// By server.
    entries: Vec<Entry>,
    /// Grows with each change.
    version: u64,
    /// What is listed now, by state and region.
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Entry {
    endpoint: Endpoint,
    hash: u64,
    region: u16,
    /// How many instances this server has been so far.
    incarnation: u32,
    listed: bool,
}

/// Endpoints of one region in one state: a caller turns to all of them at once or to none.
#[derive(Debug, Default)]
struct Group {
    nodes: Vec<(u64, u32)>,
    servers: Vec<u32>,
}

/// A server to be.
#[derive(Clone, Debug)]
pub(crate) struct NewServer<'a> {
    pub(crate) group: &'a str,
    pub(crate) region: u16,
    pub(crate) location: Region,
    pub(crate) host: Option<&'a str>,
    pub(crate) weight: u32,
    pub(crate) listed: bool,
}

impl Directory {
    pub(crate) fn new(policy: Policy, round_trips: RoundTrips) -> Result<Self, Invalid> {
        Ok(Self {
            name: ServiceName::new(crate::SERVICE)?,
            service: Service {
                kind: ServiceKind::Replicated,
                protocol: Protocol::Http1,
                virtual_address: None,
            },
            policy,
            regions: Regions::default(),
            round_trips,
            hosts: Hosts::default(),
            health: Verdicts::default(),
            entries: Vec::new(),
            version: 0,
            groups: Vec::new(),
        })
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
            instance,
            address: SocketAddr::from(([10, a, b, c], 80)),
            location: Location { host_type, ..Location::in_region(new.location.clone()) },
            state: EndpointState::Serving,
            weight: new.weight,
            lease: None,
            labels: BTreeMap::new(),
        };
        let hash = hash_text(endpoint.instance.as_str());
        self.entries.push(Entry { endpoint, hash, region: new.region, incarnation: 0, listed: new.listed });
        Ok(())
    }

    /// Whether a server is listed as one that serves.
    pub(crate) fn serves(&self, server: u32) -> bool {
        let entry = &self.entries[server as usize];
        entry.listed && entry.endpoint.state == EndpointState::Serving
    }

    /// Lists a server in this state, or no more.
    pub(crate) fn list(&mut self, server: u32, state: Option<EndpointState>) {
        let entry = &mut self.entries[server as usize];
        entry.listed = state.is_some();
        if let Some(state) = state {
            entry.endpoint.state = state;
        }
    }

    /// Makes a server another instance, as a new process of a deployment is one.
    pub(crate) fn renew(&mut self, server: u32) {
        let entry = &mut self.entries[server as usize];
        let name = entry.endpoint.instance.as_str();
        let stem = name.split('.').next().unwrap_or(name);
        entry.incarnation += 1;
        if let Ok(instance) = InstanceId::new(format!("{stem}.{}", entry.incarnation)) {
            entry.hash = hash_text(instance.as_str());
            entry.endpoint.instance = instance;
        }
    }

    /// Makes what was changed known to callers that refresh from now on.
    pub(crate) fn publish(&mut self) {
        self.version += 1;
        let mut groups: BTreeMap<(&str, u16), Group> = BTreeMap::new();
        for (server, entry) in (0..).zip(&self.entries).filter(|(_, entry)| entry.listed) {
            let group = groups.entry((entry.endpoint.state.as_str(), entry.region)).or_default();
            // Subsets weigh nobody, as in the router.
            group.nodes.push((entry.hash, FULL_WEIGHT));
            group.servers.push(server);
        }
        self.groups = groups.into_values().collect();
    }

    /// The servers that this caller's subsets can hold: of each group those that the subset of the group holds.
    ///
    /// Which ring a group lies in, and with which others, makes no difference: the first k of a union are among the
    /// first k of its parts. So a caller that is told no others decides as one that is told all, and 3,000 callers of
    /// 3,000 servers fit into memory.
    fn concern(&self, chooser: u64) -> Vec<u32> {
        let keep = self.policy.balancing.subset as usize;
        let mut servers = Vec::new();
        for group in &self.groups {
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

    /// The records as a caller has them that is told of these endpoints.
    fn facts<'a>(&'a self, endpoints: &'a [Endpoint], location: &'a Location, client: u64) -> Facts<'a> {
        Facts {
            name: &self.name,
            service: &self.service,
            policy: &self.policy,
            endpoints,
            shards: None,
            location,
            regions: &self.regions,
            round_trips: &self.round_trips,
            hosts: &self.hosts,
            health: &self.health,
            // Simulated policies have no routes.
            client_id: "",
            client,
        }
    }
}

/// What one caller knows of the service.
#[derive(Debug)]
pub(crate) struct Knowledge {
    /// What it decides by.
    pub(crate) upstream: Upstream,
    /// What it has learnt, whichever snapshot is in use.
    pub(crate) endpoint_stats: Arc<EndpointStats>,
    /// Servers by the upstream's indices.
    servers: Vec<u32>,
    /// By the same, those that were called.
    lanes: Vec<Option<Lane>>,
    told: Vec<Endpoint>,
    version: u64,
}

impl Knowledge {
    /// What a caller knows once it has subscribed.
    pub(crate) fn first(directory: &Directory, location: &Location, client: u64) -> Self {
        let told = told(directory, client);
        let endpoint_stats = Arc::default();
        let upstream = Upstream::compile(&directory.facts(&told, location, client), &endpoint_stats, None);
        let servers = servers_of(&upstream);
        Self { upstream, endpoint_stats, servers, lanes: Vec::new(), told, version: directory.version }
    }

    /// Learns what has changed since.
    pub(crate) fn refresh(&mut self, directory: &Directory, location: &Location, client: u64) {
        if self.version == directory.version {
            return;
        }
        self.version = directory.version;
        let told = told(directory, client);
        if told != self.told {
            let facts = directory.facts(&told, location, client);
            let upstream = Upstream::compile(&facts, &self.endpoint_stats, Some(&self.upstream));
            self.leave(&upstream);
            self.upstream = upstream;
            self.servers = servers_of(&self.upstream);
            self.told = told;
        }
    }

    /// Drops the lanes to endpoints that the next snapshot does not know.
    fn leave(&mut self, next: &Upstream) {
        let instance = |upstream: &Upstream, index| upstream.known(index).map(|known| known.instance.clone());
        for (index, lane) in (0..).zip(&mut self.lanes) {
            if instance(&self.upstream, index) != instance(next, index) {
                *lane = None;
            }
        }
    }

    /// The way to the endpoint at an index, where it was called.
    #[inline]
    pub(crate) fn lane(&self, index: u32) -> Option<&Lane> {
        self.lanes.get(index as usize)?.as_ref()
    }

    pub(crate) fn lane_mut(&mut self, index: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(index as usize)?.as_mut()
    }

    /// A try at the endpoint at an index, then that of `server`, ended: with an answer or without one.
    #[inline]
    pub(crate) fn connected(&mut self, index: u32, server: u32, has_answer: bool, now: u64) {
        let index = index as usize;
        if self.servers.get(index) != Some(&server) {
            return;
        }
        if self.lanes.len() <= index {
            self.lanes.resize_with(self.servers.len(), || None);
        }
        let lane = self.lanes[index].get_or_insert_default();
        match has_answer {
            true => lane.used(now),
            false => lane.close(),
        }
    }

    /// The server at an index that this caller picked.
    #[inline]
    pub(crate) fn server(&self, index: u32) -> u32 {
        self.servers[index as usize]
    }
}

fn told(directory: &Directory, client: u64) -> Vec<Endpoint> {
    // As the router salts its caller's hash.
    let chooser = mix_pair(client, hash_text(crate::SERVICE));
    let servers = directory.concern(chooser);
    servers.into_iter().map(|server| directory.entries[server as usize].endpoint.clone()).collect()
}

/// The address of an endpoint carries the number of its server.
fn servers_of(upstream: &Upstream) -> Vec<u32> {
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
    use fairmesh_router::Ask;

    use super::*;

    fn directory(servers: u32, subset: u32) -> Directory {
        let mut policy = Policy::default();
        policy.balancing.subset = subset;
        let mut round_trips = RoundTrips::default();
        let regions = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let trip = std::time::Duration::from_millis(90);
        round_trips.set(regions[0].clone(), regions[1].clone(), trip);
        let mut directory = Directory::new(policy, round_trips).unwrap();
        for server in 0..servers {
            let region = (server % 2) as u16;
            let location = regions[region as usize].clone();
            let weight = 1000 + 100 * (server % 7);
            let new = NewServer { group: "s", region, location, host: None, weight, listed: true };
            directory.add(&new).unwrap();
        }
        directory.publish();
        directory
    }

    /// What the router makes of all endpoints.
    fn full(directory: &Directory, location: &Location, client: u64) -> Upstream {
        let all: Vec<Endpoint> = directory.entries.iter().map(|entry| entry.endpoint.clone()).collect();
        Upstream::compile(&directory.facts(&all, location, client), &Arc::default(), None)
    }

    #[test]
    fn a_caller_told_of_its_subset_only_decides_as_one_told_of_all() {
        let mut directory = directory(200, 20);
        // Some drain and some are lost, so that several tiers hold endpoints of both regions.
        for server in 0..40 {
            let state = if server < 20 { EndpointState::Draining } else { EndpointState::Lost };
            directory.list(server, Some(state));
        }
        directory.publish();
        let location = Location::in_region(Region::new("eu").unwrap());
        for client in 0..20 {
            let known = Knowledge::first(&directory, &location, client);
            assert!(known.told.len() <= 6 * 20, "{}", known.told.len());
            let full = full(&directory, &location, client);
            let subset = |upstream: &Upstream| {
                let candidates = upstream.candidates().filter(|candidate| candidate.in_subset);
                let mut names: Vec<_> =
                    candidates.map(|candidate| candidate.target.instance.clone()).collect();
                names.sort();
                names
            };
            assert_eq!(subset(&known.upstream), subset(&full));
            for seed in 0..200 {
                let ask = Ask::default();
                let ours = known.upstream.pick(&ask, 0, seed).unwrap();
                let theirs = full.pick(&ask, 0, seed).unwrap();
                let target = &full.target(theirs.index).address;
                assert_eq!(
                    &known.upstream.target(ours.index).address,
                    target,
                    "client {client}, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn a_caller_learns_of_new_instances_and_knows_which_servers_they_are() {
        let mut directory = directory(10, 0);
        let location = Location::in_region(Region::new("eu").unwrap());
        let mut known = Knowledge::first(&directory, &location, 1);
        directory.renew(4);
        directory.list(6, None);
        directory.publish();
        known.refresh(&directory, &location, 1);
        let mut seen: Vec<(String, u32)> = known
            .upstream
            .candidates()
            .map(|candidate| (candidate.target.instance.to_string(), known.server(candidate.index)))
            .collect();
        seen.sort();
        assert_eq!(seen.len(), 9);
        assert!(seen.contains(&("s-4.1".to_owned(), 4)));
        assert!(!seen.iter().any(|(_, server)| *server == 6));
    }
}
