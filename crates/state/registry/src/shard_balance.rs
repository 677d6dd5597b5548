//! The load of shards, and plans of moves that prevent overload (ServiceRouter §4.3.1).
//!
//! The control plane only plans. An operator's command or an external shard manager executes the plan through the
//! same calls. Plans use the load reports that this process holds in memory. The owner of a service should choose one
//! party to move its shards. A loop within the control plane was rejected, because it would compete with external
//! shard managers without operators noticing.

mod load_window;
mod plan;
mod region_pool;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    EndpointState, FULL_SPEED, Hosts, InstanceId, Prefix, Record, RecordKey, Region, Role, ServiceName,
    ShardId, Zone,
};
use fairmesh_wire::record_encoding;

pub(crate) use load_window::LoadWindows;
pub use load_window::{LoadReport, ReportOutcome, ShardWork};
use load_window::{LoadWindow, SILENT_MS};
pub use plan::{Forecast, MovePlan, PlanInput, PlanNote, PlanOptions, plan};
pub use region_pool::{Server, Work, WorkByShard};

use crate::{InstanceClaim, Registry, RegistryError};

/// Minimum calls per minute for a plan. With fewer calls, load is mostly chance.
const MIN_CALLS_PER_MINUTE: u64 = 100;

/// The load of one server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLoad {
    /// Instance id of the server.
    pub instance: InstanceId,
    /// Region of the server.
    pub region: Region,
    /// Failure domain, if known.
    pub zone: Option<Zone>,
    /// Relative capacity, in thousandths.
    pub power: u32,
    /// Whether the server serves and may receive shards.
    pub serves: bool,
    /// Age of the last report. `None` without a recent report; the load fields are then empty.
    pub age: Option<Duration>,
    /// Calls with shard keys, per minute.
    pub calls: u64,
    /// The shards with the most work: id, role and work.
    pub shards: Vec<(ShardId, Role, Work)>,
    /// Work of all other shards.
    pub rest: Work,
}

impl ServerLoad {
    /// Returns the server's work in all shards.
    pub fn work(&self) -> Work {
        self.shards.iter().fold(self.rest, |sum, (.., work)| sum.saturating_add(*work))
    }
}

impl Registry {
    /// Records a report of shard work and counts its outcome.
    pub fn report_load(&self, claim: &InstanceClaim, report: &LoadReport) -> ReportOutcome {
        let registered = self.leases().is_held_by(claim);
        let mut windows = self.windows();
        let taken = match registered {
            true => windows.add(claim, report, self.now_ms()),
            false => ReportOutcome::Unknown,
        };
        windows.count(taken);
        taken
    }

    /// Returns the number of load reports by outcome.
    pub fn load_reports(&self) -> [(ReportOutcome, u64); 5] {
        self.windows().counts()
    }

    /// Returns the number of servers with recent load reports, and of servers whose reports have stopped.
    pub fn load_servers(&self) -> (usize, usize) {
        self.windows().servers(self.now_ms())
    }

    /// The load of each server of a service, by instance id.
    ///
    /// # Errors
    /// `NotFound` when the service has no shard map.
    pub fn loads(&self, service: &ServiceName) -> Result<Vec<ServerLoad>, RegistryError> {
        self.map_of(service)?;
        let hosts = self.hosts();
        let mut windows = self.windows().of(service);
        let now_ms = self.now_ms();
        let held =
            self.stored_endpoints(&Prefix::endpoints(service, None)).into_iter().map(|held| held.endpoint);
        let mut loads: Vec<_> = held
            .map(|endpoint| {
                let window = windows.remove(&endpoint.instance);
                let window = window.filter(|window| window.age_ms(now_ms) <= SILENT_MS);
                let age = window.as_ref().map(|window| Duration::from_millis(window.age_ms(now_ms)));
                let window = window.unwrap_or_default();
                // A slow host takes longer for the same work.
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

    /// Proposes moves that prevent overload, but does not start them.
    ///
    /// # Errors
    /// `NotFound` when the service has no shard map, `Refused` without sufficient load reports.
    pub fn propose(&self, service: &ServiceName, options: &PlanOptions) -> Result<MovePlan, RegistryError> {
        let loads = self.loads(service)?;
        let held = self.map_of(service)?;
        check_coverage(service, &loads)?;
        let silent = loads.iter().filter(|load| load.age.is_none()).count();
        let mut works = WorkByShard::new();
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
            accepts: load.serves,
            rest: load.rest,
        });
        let moving: BTreeSet<_> =
            self.moves(service).into_iter().map(|(_, shard_move, _)| shard_move.shard).collect();
        let input = PlanInput { map: &held.map, servers: servers.collect(), works, moving };
        let mut made = plan(&input, options);
        if silent > 0 {
            made.notes.push(PlanNote::Silent { servers: silent });
        }
        Ok(made)
    }

    fn hosts(&self) -> Hosts {
        let Some(entry) = self.node().get(&RecordKey::Hosts.to_string()) else { return Hosts::default() };
        match record_encoding::decode(&RecordKey::Hosts, &entry.value) {
            Ok(Record::Hosts(hosts)) => hosts,
            _ => Hosts::default(),
        }
    }
}

fn shards(window: LoadWindow, speed: u32) -> Vec<(ShardId, Role, Work)> {
    let shards = window.shards.into_iter();
    let shards: BTreeMap<_, _> = shards.map(|(key, work)| (key, at_ordinary_speed(work, speed))).collect();
    shards.into_iter().map(|((shard, role), work)| (shard, role, work)).collect()
}

fn at_ordinary_speed(work: Work, speed: u32) -> Work {
    work.saturating_mul(speed.into()) / Work::from(FULL_SPEED)
}

/// Refuses to plan if fewer than half of the servers report their load, or if there are too few calls.
fn check_coverage(service: &ServiceName, loads: &[ServerLoad]) -> Result<(), RegistryError> {
    let known = loads.iter().filter(|load| load.age.is_some()).count();
    if known == 0 || known * 2 < loads.len() {
        let problem =
            format!("the load by shard is known of {known} of {} servers of {service}", loads.len());
        let hint = "servers with the library's layer report it every 10 s, also after a restart of the control plane: \
                    wait a little; programs registered by others do not report it";
        return Err(RegistryError::refused("service", problem, hint));
    }
    let calls: u64 = loads.iter().map(|load| load.calls).sum();
    if calls < MIN_CALLS_PER_MINUTE {
        let problem = format!("{calls} calls a minute have keys for {service}, too few to plan");
        let hint = format!("plan again when there are {MIN_CALLS_PER_MINUTE} or more");
        return Err(RegistryError::refused("service", problem, &hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
