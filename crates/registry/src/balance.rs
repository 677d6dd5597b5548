//! The load of shards, and what to move so that no server is overloaded by it (ServiceRouter §4.3.1).
//!
//! The control plane plans and an operator's command, or an outside shard manager, carries out, by the same calls: what a
//! plan rests on is in memory here, and who moves shards of a service should be one, whom its owner chose. A loop within
//! the control plane was rejected: it would be a second hand beside outside shard managers, and one that nobody sees.

mod plan;
mod pool;
mod window;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    EndpointState, FULL_SPEED, Hosts, InstanceId, Prefix, Record, RecordKey, Region, Role, ServiceName,
    ShardId, Zone,
};
use fairmesh_wire::records;

pub use plan::{Facts, Forecast, Note, Plan, Terms, plan};
pub use pool::{Server, Work, Works};
pub(crate) use window::Windows;
pub use window::{LoadReport, ShardWork, Taken};
use window::{SILENT_MS, Window};

use crate::{Claim, Registry, RegistryError};

/// Fewer calls a minute are chance and nothing to plan by.
const FEW_CALLS: u64 = 100;

/// What one server of a service does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLoad {
    /// Which one.
    pub instance: InstanceId,
    /// Where it runs.
    pub region: Region,
    /// The failure domain, where one is known.
    pub zone: Option<Zone>,
    /// What it can do beside the others, in thousandths.
    pub power: u32,
    /// Whether it serves, and may be given shards.
    pub serves: bool,
    /// How long ago it spoke; `None` where it is silent and nothing below is known.
    pub age: Option<Duration>,
    /// Calls a minute that carried keys.
    pub calls: u64,
    /// The shards with most work, by id and role.
    pub shards: Vec<(ShardId, Role, Work)>,
    /// The work of all others together.
    pub rest: Work,
}

impl ServerLoad {
    /// All of its work.
    pub fn work(&self) -> Work {
        self.shards.iter().fold(self.rest, |sum, (.., work)| sum.saturating_add(*work))
    }
}

impl Registry {
    /// Takes in what a server says of its shards' work; what came of it is counted.
    pub fn report_load(&self, who: &Claim, report: &LoadReport) -> Taken {
        let registered = self.leases().is_held_by(who);
        let mut windows = self.windows();
        let taken = match registered {
            true => windows.take(who, report, self.now_ms()),
            false => Taken::Unknown,
        };
        windows.count(taken);
        taken
    }

    /// How many reports became what.
    pub fn load_reports(&self) -> [(Taken, u64); 5] {
        self.windows().counts()
    }

    /// How many servers have a known load by shard, and how many had one and are silent now.
    pub fn load_servers(&self) -> (usize, usize) {
        self.windows().servers(self.now_ms())
    }

    /// What each server of a service does, by name.
    ///
    /// # Errors
    /// `NotFound` when the service has no shard map.
    pub fn loads(&self, service: &ServiceName) -> Result<Vec<ServerLoad>, RegistryError> {
        self.map_of(service)?;
        let hosts = self.hosts();
        let mut windows = self.windows().of(service);
        let now_ms = self.now_ms();
        let held = self.held(&Prefix::endpoints(service, None)).into_iter().map(|held| held.endpoint);
        let mut loads: Vec<_> = held
            .map(|endpoint| {
                let window = windows.remove(&endpoint.instance);
                let window = window.filter(|window| window.age_ms(now_ms) <= SILENT_MS);
                let age = window.as_ref().map(|window| Duration::from_millis(window.age_ms(now_ms)));
                let window = window.unwrap_or_default();
                // What a slow host takes long for is less work than the time says.
                let speed = hosts.speed(&endpoint);
                ServerLoad {
                    power: hosts.power(&endpoint),
                    serves: endpoint.state == EndpointState::Serving,
                    instance: endpoint.instance,
                    region: endpoint.location.region,
                    zone: endpoint.location.zone,
                    age,
                    calls: window.calls.saturating_mul(60) / 1000,
                    rest: at_ordinary_speed(window.rest, speed),
                    shards: shards(window, speed),
                }
            })
            .collect();
        loads.sort_by(|a, b| a.instance.cmp(&b.instance));
        Ok(loads)
    }

    /// What to do so that no server is overloaded. Nothing is done yet.
    ///
    /// # Errors
    /// `NotFound` when the service has no shard map, `Refused` where too little is known of its load.
    pub fn propose(&self, service: &ServiceName, terms: &Terms) -> Result<Plan, RegistryError> {
        let loads = self.loads(service)?;
        let held = self.map_of(service)?;
        check_known(service, &loads)?;
        let silent = loads.iter().filter(|load| load.age.is_none()).count();
        let mut works = Works::new();
        for load in &loads {
            for (shard, role, work) in &load.shards {
                *works.entry((*shard, role.clone(), load.region.clone())).or_default() += work;
            }
        }
        let servers = loads.into_iter().filter(|load| load.age.is_some()).map(|load| Server {
            instance: load.instance,
            region: load.region,
            zone: load.zone,
            power: load.power,
            takes: load.serves,
            rest: load.rest,
        });
        let still: BTreeSet<_> = self.moves(service).into_iter().map(|(_, wish, _)| wish.shard).collect();
        let facts = Facts { map: &held.map, servers: servers.collect(), works, still };
        let mut made = plan(&facts, terms);
        if silent > 0 {
            made.notes.push(Note::Silent { servers: silent });
        }
        Ok(made)
    }

    fn hosts(&self) -> Hosts {
        let Some(entry) = self.node().get(&RecordKey::Hosts.to_string()) else { return Hosts::default() };
        match records::decode(&RecordKey::Hosts, &entry.value) {
            Ok(Record::Hosts(hosts)) => hosts,
            _ => Hosts::default(),
        }
    }
}

fn shards(window: Window, speed: u32) -> Vec<(ShardId, Role, Work)> {
    let shards = window.shards.into_iter();
    let shards: BTreeMap<_, _> = shards.map(|(key, work)| (key, at_ordinary_speed(work, speed))).collect();
    shards.into_iter().map(|((shard, role), work)| (shard, role, work)).collect()
}

fn at_ordinary_speed(work: Work, speed: u32) -> Work {
    work.saturating_mul(speed.into()) / Work::from(FULL_SPEED)
}

/// Refuses to plan where half of the servers are silent, or hardly anybody calls.
fn check_known(service: &ServiceName, loads: &[ServerLoad]) -> Result<(), RegistryError> {
    let known = loads.iter().filter(|load| load.age.is_some()).count();
    if known == 0 || known * 2 < loads.len() {
        let problem =
            format!("the load by shard is known of {known} of {} servers of {service}", loads.len());
        let hint = "servers with the library's layer say it every 10 s, also after a restart of the control plane: wait a \
                    little; of programs that others register it is not known";
        return Err(RegistryError::refused("service", problem, hint));
    }
    let calls: u64 = loads.iter().map(|load| load.calls).sum();
    if calls < FEW_CALLS {
        let problem = format!("{calls} calls a minute carry keys for {service}, too few to plan by");
        let hint = format!("plan again when there are {FEW_CALLS} or more");
        return Err(RegistryError::refused("service", problem, &hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
