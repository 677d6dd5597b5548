//! The scenario of a tree as written in YAML: processes, records, writes, and events.

mod event;
mod validation;

use serde::{Deserialize, Serialize};

pub use event::{Action, Expect, ScenarioEvent};

use crate::scenario::SimTime;

/// A tree of replicas, its writes and its events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// The kind of scenario.
    #[serde(default)]
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub about: String,
    /// Random seed; the same seed gives the same result.
    #[serde(default = "one")]
    pub seed: u64,
    /// Time with writes.
    pub duration: SimTime,
    /// Time at the beginning that is excluded from all figures.
    #[serde(default)]
    pub warmup: SimTime,
    /// The content of the routing information base.
    pub services: Services,
    /// Changes to it.
    pub writes: Writes,
    /// Processing costs of propagating changes.
    pub costs: Costs,
    /// The machine of the control plane.
    pub root: Machine,
    /// Regions with replicas.
    pub regions: Vec<RegionAt>,
    /// Layers of replicas, from the root down.
    pub replicas: Vec<Replicas>,
    /// The machines, each with an agent and programs.
    pub agents: Agents,
    /// Interval of acknowledgements.
    #[serde(default = "one_second")]
    pub acknowledge: SimTime,
    /// Whether the tables of all processes, programs included, are compared with the root's at the end; takes memory.
    #[serde(default)]
    pub compare: bool,
    /// Scenario events.
    #[serde(default)]
    pub events: Vec<ScenarioEvent>,
    /// Expectations on the result.
    #[serde(default)]
    pub expect: Expect,
}

/// Distinguishes these scenarios from those of fleets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A tree of replicas.
    #[default]
    Tree,
}

/// The services.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Services {
    /// Number of services.
    pub count: u32,
    /// The distribution of servers per service: the share of services with more than this many servers, from 1 server
    /// and a share of 1 down; interpolated linearly on logarithmic scales.
    pub sizes: Vec<Size>,
    /// Key and value of an endpoint, in bytes.
    pub endpoint_bytes: u32,
    /// The share of services that are sharded: every other one of the largest.
    pub sharded: f64,
    /// Size of the routing information base, in bytes; all but the endpoints is shard maps, in proportion to servers.
    pub bytes: f64,
    /// A chunk of a shard map, in bytes.
    pub chunk_bytes: u32,
    /// Exponent of popularity: programs choose the services that they call by servers to the power of this.
    pub popularity: f64,
}

/// One point of the distribution of sizes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Size {
    /// More servers than this
    pub servers: f64,
    /// Share of services with more servers than that.
    pub share: f64,
}

/// All writers together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Writes {
    /// Batches per second, as a Poisson process.
    pub batches: f64,
    /// Bytes of keys and values per second; batch sizes are exponentially distributed.
    pub bytes: f64,
    /// Bytes of shard maps, as a multiple of all others.
    pub sharded: f64,
    /// Mean number of endpoints of one service that change together.
    pub together: u32,
}

/// Processing costs, as times of one core.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Costs {
    /// Cost of a message to one watcher, including its acknowledgement.
    pub delivery: SimTime,
    /// Cost of a megabyte sent to one watcher.
    pub megabyte: SimTime,
    /// Cost of a record applied and added to the watchers' lists.
    pub record: SimTime,
}

/// The machine of a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// Cores that it may use.
    pub cores: f64,
    /// Uplink, in gigabits per second.
    pub gigabits: f64,
}

/// A region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionAt {
    /// Its name.
    pub name: String,
    /// One-way delay from the root.
    pub delay: SimTime,
}

/// The link of a process to its parent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// One-way delay; added to the region's for the first layer.
    #[serde(default)]
    pub delay: SimTime,
    /// Downlink of a process, in gigabits per second.
    pub gigabits: f64,
}

/// A layer of replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Replicas {
    /// Its name in events and figures.
    pub name: String,
    /// Number under each process of the layer above; for the first layer, per region.
    pub count: u32,
    /// How many of these are simulated, each representing an equal part of the others. All by default.
    #[serde(default)]
    pub simulated: Option<u32>,
    /// The link to its parent.
    pub link: Link,
    /// Its machine.
    pub machine: Machine,
}

/// The machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Agents {
    /// Number under each replica of the last layer.
    pub count: u32,
    /// How many of these are simulated.
    #[serde(default)]
    pub simulated: Option<u32>,
    /// The link to its parent.
    pub link: Link,
    /// The part of the machine that the agent may use.
    pub machine: Machine,
    /// Programs on the machine, each with a router.
    pub programs: u32,
    /// Services that a program calls.
    pub calls: u32,
    /// One-way delay from the agent to a program.
    pub local: SimTime,
}

impl Scenario {
    /// Scales the fleet: services, total size, writes, bursts, and machines under each replica. The rate of batches,
    /// the number of replicas, and the number of simulated agents stay the same.
    pub fn scale(&mut self, factor: f64) {
        let times = |count: u32| ((f64::from(count) * factor).round() as u32).max(1);
        self.services.count = times(self.services.count);
        self.services.bytes *= factor;
        self.writes.bytes *= factor;
        let simulated = self.agents.simulated.unwrap_or(self.agents.count);
        self.agents.count = times(self.agents.count);
        self.agents.simulated = Some(simulated.min(self.agents.count));
        for event in &mut self.events {
            if let Action::Burst { records, .. } = &mut event.action {
                *records = times(*records);
            }
        }
    }

    /// Number of routers.
    pub fn routers(&self) -> u64 {
        self.machines() * u64::from(self.agents.programs)
    }

    /// Number of machines.
    pub fn machines(&self) -> u64 {
        let replicas: u64 = self.replicas.iter().map(|layer| u64::from(layer.count)).product();
        self.regions.len() as u64 * replicas * u64::from(self.agents.count)
    }
}

fn one() -> u64 {
    1
}

fn one_second() -> SimTime {
    SimTime::seconds(1)
}
