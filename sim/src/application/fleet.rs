//! An application as a fleet: pools become groups of servers, clients become groups of callers.

use fairmesh_model::{Invalid, Region, Ring, ServiceName};

use super::{Clients, Operation, PoolEvent, Scenario, Service};
use crate::{
    engine::Placement,
    scenario::{
        Callers, Distribution, Expect, Network, PolicyUnderTest, Requests, ScenarioEvent, Servers, SimTime,
        router_rings,
    },
};

/// Number of client processes per entry of `clients` and region.
const CLIENT_PROCESSES: u32 = 4;

impl Scenario {
    /// Returns the fleet that a valid scenario describes.
    pub(crate) fn fleet(&self) -> crate::Scenario {
        let play = &self.play;
        crate::Scenario {
            name: self.name.clone(),
            about: self.about.clone(),
            seed: play.seed,
            salt: 0,
            duration: play.duration,
            warmup: play.warmup,
            window: play.window,
            policy: PolicyUnderTest { timeout: Some(play.timeout.clone()), ..PolicyUnderTest::default() },
            hosts: Default::default(),
            servers: self.pools().map(|(service, region)| servers(service, region)).collect(),
            callers: self
                .client_groups()
                .map(|(at, clients, region)| self.callers(at, clients, region))
                .collect(),
            network: Network {
                round_trips: self.topology.round_trips.clone(),
                propagation: play.propagation,
                ..Network::default()
            },
            traffic: None,
            events: play.events.iter().flat_map(|event| self.fleet_events(event)).collect(),
            expect: Expect::default(),
        }
    }

    /// Returns the service to which each group in the fleet belongs.
    pub(crate) fn placement(&self) -> Result<Placement, Invalid> {
        let position = |name: &str| self.service(name).unwrap_or_default() as u16;
        let called = |clients: &Clients| {
            let operation = self.operation(&clients.to).unwrap_or_default();
            position(&self.operations[operation].service)
        };
        Ok(Placement {
            services: self.service_names()?,
            regions: self.regions().into_iter().map(Region::new).collect::<Result<_, _>>()?,
            of_servers: self.pools().map(|(service, _)| position(&service.name)).collect(),
            of_callers: self.client_groups().map(|(_, clients, _)| called(clients)).collect(),
        })
    }

    /// The rings that routers use without a table.
    pub(crate) fn router_rings(&self) -> Result<Vec<Ring>, Invalid> {
        router_rings(&self.rings)
    }

    /// Names of services in the mesh.
    pub(crate) fn service_names(&self) -> Result<Vec<ServiceName>, Invalid> {
        self.services.iter().map(|service| ServiceName::new(format!("app/{}", service.name))).collect()
    }

    /// All pools: services with the regions of their servers.
    fn pools(&self) -> impl Iterator<Item = (&Service, &str)> {
        self.services.iter().flat_map(|service| {
            let placed = service.cores.iter().filter(|(_, cores)| **cores > 0.0);
            placed.map(move |(region, _)| (service, region.as_str()))
        })
    }

    /// Entries of `clients`, by position, with each region that makes calls.
    pub(crate) fn client_groups(&self) -> impl Iterator<Item = (usize, &Clients, &str)> {
        self.clients.iter().enumerate().flat_map(|(at, clients)| {
            let calling = clients.rates.iter().filter(|(_, rate)| **rate > 0.0);
            calling.map(move |(region, _)| (at, clients, region.as_str()))
        })
    }

    fn callers(&self, at: usize, clients: &Clients, region: &str) -> Callers {
        let operation = &self.operations[self.operation(&clients.to).unwrap_or_default()];
        Callers {
            name: format!("clients-{at}-{region}"),
            count: CLIENT_PROCESSES,
            rate: clients.rates.get(region).copied().unwrap_or_default() / f64::from(CLIENT_PROCESSES),
            burst: 1.0,
            region: region.to_owned(),
            requests: vec![operation.demand()],
            rate_over_time: clients.rate_over_time.get(region).cloned().unwrap_or_default(),
        }
    }

    /// Returns an event for each affected group of servers.
    fn fleet_events(&self, event: &PoolEvent) -> Vec<ScenarioEvent> {
        let pools = self.pools().filter(|(service, region)| event.is_of(&service.name, region));
        let of_pool = |(service, region): (&Service, &str)| ScenarioEvent {
            at: event.at,
            to: Some(group_name(service, region)),
            count: None,
            action: event.action.clone(),
        };
        pools.map(of_pool).collect()
    }
}

impl Operation {
    /// Returns the demand of one call on its server.
    pub(crate) fn demand(&self) -> Requests {
        Requests {
            share: 1.0,
            cpu: Distribution::Exponential(self.cpu),
            wait: (self.wait > SimTime::default()).then_some(Distribution::Fixed(self.wait)),
            stream: false,
        }
    }
}

fn group_name(service: &Service, region: &str) -> String {
    format!("{}-{region}", service.name)
}

/// Returns the equal servers that a pool needs.
fn servers(service: &Service, region: &str) -> Servers {
    let cores = service.cores.get(region).copied().unwrap_or_default();
    let count = (cores / service.server).ceil().max(1.0);
    Servers {
        name: group_name(service, region),
        count: count as u32,
        cores: cores / count,
        host: None,
        region: region.to_owned(),
        drift: None,
        warm_up: None,
        neighbours: None,
        limit: service.limit,
        starts_in: SimTime::seconds(5),
        standby: false,
    }
}
