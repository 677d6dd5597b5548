//! What a person writes: a tree, what is in it, what is written to it, and what happens.

mod check;
mod happening;

use serde::{Deserialize, Serialize};

pub use happening::{Action, Expect, Happening};

use crate::scenario::Span;

/// A tree of replicas and what it lives through.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// That it is one.
    #[serde(default)]
    pub kind: Kind,
    /// What it is called.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub about: String,
    /// Where chance starts; the same seed gives the same result.
    #[serde(default = "one")]
    pub seed: u64,
    /// Time in which there are writes.
    pub duration: Span,
    /// Time at the beginning that no figure counts.
    #[serde(default)]
    pub warmup: Span,
    /// What is in the routing information base.
    pub services: Services,
    /// What changes in it.
    pub writes: Writes,
    /// What it costs a processor to pass changes on.
    pub costs: Costs,
    /// The control plane.
    pub root: Machine,
    /// Where replicas are.
    pub regions: Vec<RegionAt>,
    /// Layers of replicas, from the root down.
    pub replicas: Vec<Replicas>,
    /// The machines, each with an agent and programs.
    pub agents: Agents,
    /// How often who has applied something says so.
    #[serde(default = "one_second")]
    pub acknowledge: Span,
    /// Whether in the end what everybody holds, programs included, is compared with the root's; takes memory.
    #[serde(default)]
    pub compare: bool,
    /// What happens when.
    #[serde(default)]
    pub events: Vec<Happening>,
    /// What must hold in the end.
    #[serde(default)]
    pub expect: Expect,
}

/// What tells these scenarios from those of fleets.
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
    /// How many.
    pub count: u32,
    /// How many servers they have: the share of services that have more than so many, from 1 server and a share of 1 down;
    /// straight lines between where both are on logarithmic scales.
    pub sizes: Vec<Size>,
    /// Key and value of an endpoint, in bytes.
    pub endpoint_bytes: u32,
    /// The share of services that are sharded: every other one of the largest.
    pub sharded: f64,
    /// All of the routing information base, in bytes; what endpoints leave of it is shard maps, by servers.
    pub bytes: f64,
    /// A chunk of a shard map, in bytes.
    pub chunk_bytes: u32,
    /// How much more popular large services are: programs choose what they call by servers to the power of this.
    pub popularity: f64,
}

/// One point of the distribution of sizes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Size {
    /// More servers than this
    pub servers: f64,
    /// has this share of services.
    pub share: f64,
}

/// The writers, taken together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Writes {
    /// Batches a second, at moments of a Poisson process.
    pub batches: f64,
    /// Bytes of keys and values a second; batches differ exponentially in size.
    pub bytes: f64,
    /// Bytes of sharded services' maps, as a multiple of all others.
    pub sharded: f64,
    /// Endpoints of one service that change together, on average.
    pub together: u32,
}

/// Times of one core.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Costs {
    /// A message to one watcher, its acknowledgement included.
    pub delivery: Span,
    /// A megabyte sent to one watcher.
    pub megabyte: Span,
    /// A record taken over and passed to the watchers' lists.
    pub record: Span,
}

/// What a process runs on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// Cores that it may use.
    pub cores: f64,
    /// What it may send, in gigabits a second.
    pub gigabits: f64,
}

/// A region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionAt {
    /// Its name.
    pub name: String,
    /// One way from the root.
    pub delay: Span,
}

/// How a process is reached from its parent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// One way; the region's for the first layer.
    #[serde(default)]
    pub delay: Span,
    /// What one process can receive, in gigabits a second.
    pub gigabits: f64,
}

/// A layer of replicas.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Replicas {
    /// What events and figures call it.
    pub name: String,
    /// How many there are under each process of the layer above; in each region, for the first.
    pub count: u32,
    /// How many of these are played; each stands for as many as the others. All, where left out.
    #[serde(default)]
    pub played: Option<u32>,
    /// How it is reached.
    pub link: Link,
    /// What it runs on.
    pub machine: Machine,
}

/// The machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Agents {
    /// How many there are under each replica of the last layer.
    pub count: u32,
    /// How many of these are played.
    #[serde(default)]
    pub played: Option<u32>,
    /// How it is reached.
    pub link: Link,
    /// What of the machine the agent may use.
    pub machine: Machine,
    /// Programs on the machine, each a router.
    pub programs: u32,
    /// Services that a program calls.
    pub calls: u32,
    /// One way from the agent to a program.
    pub local: Span,
}

impl Scenario {
    /// Makes the fleet larger or smaller: services, all that there is, what is written of it, bursts, and machines under each
    /// replica. Batches come as often as before, replicas are as many, and so are the agents that are played.
    pub fn scale(&mut self, factor: f64) {
        let times = |count: u32| ((f64::from(count) * factor).round() as u32).max(1);
        self.services.count = times(self.services.count);
        self.services.bytes *= factor;
        self.writes.bytes *= factor;
        let played = self.agents.played.unwrap_or(self.agents.count);
        self.agents.count = times(self.agents.count);
        self.agents.played = Some(played.min(self.agents.count));
        for event in &mut self.events {
            if let Action::Burst { records, .. } = &mut event.action {
                *records = times(*records);
            }
        }
    }

    /// How many routers there are.
    pub fn routers(&self) -> u64 {
        self.machines() * u64::from(self.agents.programs)
    }

    /// How many machines there are.
    pub fn machines(&self) -> u64 {
        let replicas: u64 = self.replicas.iter().map(|layer| u64::from(layer.count)).product();
        self.regions.len() as u64 * replicas * u64::from(self.agents.count)
    }
}

fn one() -> u64 {
    1
}

fn one_second() -> Span {
    Span::seconds(1)
}
