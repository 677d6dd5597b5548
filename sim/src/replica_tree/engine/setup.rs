//! The initial state of the tree: every process has the root's records and connects.

use std::sync::Arc;

use fairmesh_model::{Invalid, Prefix, arith::Generator};
use fairmesh_rib::{DEFAULT_LOG_LEN, Entry, NodeCore, Table};

use super::{Disconnections, Engine, Event, ROOT, SECOND, STORE};
use crate::{
    event_queue::EventQueue,
    replica_tree::{
        catalogue::{Catalogue, INITIAL_REVISION, distinct_services},
        meter::{LayerMeter, histogram},
        process::{Process, ProcessId},
        scenario::{Link, Machine, Scenario},
        write_workload::WriteWorkload,
    },
    scenario::SimTime,
};

type Entries = Vec<(Arc<str>, Entry)>;

/// The machine of a program, large enough not to matter.
const PROGRAM_MACHINE: Machine = Machine { cores: 1.0, gigabits: 100.0 };

pub(super) fn build(scenario: &Scenario) -> Result<Engine<'_>, Invalid> {
    let catalogue = Catalogue::new(scenario)?;
    let entries = catalogue.entries()?;
    let mut random = Generator::new(scenario.seed);
    let first_event = scenario.events.iter().map(|event| event.at.nanos()).min().unwrap_or(u64::MAX);
    let layers = scenario.replicas.len() + 3;
    let mut engine = Engine {
        scenario,
        catalogue,
        workload: WriteWorkload::new(&scenario.writes, random.next()),
        now: 0,
        queue: EventQueue::new(1e5),
        events: Vec::new(),
        free: Vec::new(),
        pending: 0,
        processes: Vec::new(),
        layers: (0..layers).map(|_| LayerMeter::new()).collect(),
        commits: Vec::new(),
        refused: 0,
        acknowledged: INITIAL_REVISION,
        ack_latency: histogram(),
        disconnected_regions: vec![false; scenario.regions.len()],
        disconnections: vec![Disconnections::default(); scenario.events.len()],
        first_event,
        random,
    };
    engine.create_processes(&entries);
    drop(entries);
    engine.schedule_initial_events();
    Ok(engine)
}

/// Processes of a layer to be created under one parent.
struct Group {
    layer: usize,
    count: u32,
    simulated: Option<u32>,
    link: Link,
    machine: Machine,
}

impl Engine<'_> {
    fn create_processes(&mut self, entries: &Entries) {
        let mut root = Process::new(0, self.scenario.root, self.scenario.root.gigabits);
        root.node = Some(node(entries));
        root.applied = INITIAL_REVISION;
        self.processes.push(root);
        let mut layer = Vec::new();
        for (at, replicas) in self.scenario.replicas.iter().enumerate() {
            let (count, simulated) = (replicas.count, replicas.simulated);
            let group =
                Group { layer: at + 1, count, simulated, link: replicas.link, machine: replicas.machine };
            layer = match at {
                0 => (0..self.scenario.regions.len())
                    .flat_map(|region| self.create_regional_replicas(region, &group))
                    .collect(),
                _ => layer.into_iter().flat_map(|parent| self.create_children(parent, &group)).collect(),
            };
            for &id in &layer {
                self.processes[id].prefixes = vec![Prefix::everything()];
                self.processes[id].node = Some(node(entries));
            }
        }
        let agents = &self.scenario.agents;
        let (count, simulated) = (agents.count, agents.simulated);
        let at = self.scenario.replicas.len() + 1;
        let group = Group { layer: at, count, simulated, link: agents.link, machine: agents.machine };
        for replica in layer {
            for agent in self.create_children(replica, &group) {
                self.add_programs(agent);
            }
        }
    }

    /// Creates the replicas of the first layer in a region.
    fn create_regional_replicas(&mut self, region: usize, group: &Group) -> Vec<ProcessId> {
        let created = self.create_children(ROOT, group);
        for &id in &created {
            self.processes[id].region = Some(region);
            self.processes[id].delay += self.scenario.regions[region].delay.nanos();
        }
        created
    }

    /// Creates the simulated processes of a group, each representing an equal part of the others.
    fn create_children(&mut self, parent: ProcessId, group: &Group) -> Vec<ProcessId> {
        let simulated = group.simulated.unwrap_or(group.count);
        let (region, above) = (self.processes[parent].region, self.processes[parent].represents);
        let mut created = Vec::new();
        for n in 0..simulated {
            let mut process = Process::new(group.layer, group.machine, group.link.gigabits);
            process.multiplicity =
                u64::from(group.count / simulated + u32::from(n < group.count % simulated));
            process.represents = above * process.multiplicity;
            process.delay = group.link.delay.nanos();
            (process.parent, process.region, process.applied) = (Some(parent), region, INITIAL_REVISION);
            created.push(self.processes.len());
            self.processes.push(process);
        }
        created
    }

    /// Creates the programs of an agent, with the services that they call.
    fn add_programs(&mut self, agent: ProcessId) {
        let agents = &self.scenario.agents;
        let calls: Vec<Vec<usize>> = (0..agents.programs)
            .map(|_| (0..agents.calls).map(|_| self.catalogue.sample_service(&mut self.random)).collect())
            .collect();
        self.processes[agent].prefixes =
            self.prefixes_of(&distinct_services(&calls).into_iter().collect::<Vec<_>>());
        self.processes[agent].node = self.filtered_node(agent);
        let link = Link { delay: agents.local, gigabits: PROGRAM_MACHINE.gigabits };
        let layer = self.processes[agent].layer + 1;
        let group = Group { layer, count: agents.programs, simulated: None, link, machine: PROGRAM_MACHINE };
        for (program, mut calls) in self.create_children(agent, &group).into_iter().zip(calls) {
            calls.sort_unstable();
            calls.dedup();
            self.processes[program].prefixes = self.prefixes_of(&calls);
            if self.scenario.compare {
                self.processes[program].node = self.filtered_node(program);
            }
        }
    }

    fn prefixes_of(&self, services: &[usize]) -> Vec<Prefix> {
        services.iter().flat_map(|service| self.catalogue.prefixes(*service)).collect()
    }

    /// A node with the subset of the root's records that a process follows.
    fn filtered_node(&self, id: ProcessId) -> Option<NodeCore> {
        let root = self.processes[ROOT].node.as_ref()?;
        Some(node(&root.table().read(&self.processes[id].prefixes)))
    }

    fn schedule_initial_events(&mut self) {
        for id in 1..self.processes.len() {
            self.push(0, Event::Connected(id, 0));
            let pause = self.scenario.acknowledge.nanos();
            let first = self.random.below(pause);
            self.push(first, Event::SendAck(id));
        }
        self.push(SECOND, Event::Second);
        let first = self.workload.pause();
        self.push(first, Event::Write);
        for (index, event) in self.scenario.events.iter().enumerate() {
            self.push(SimTime::nanos(event.at), Event::Begin(index));
        }
    }
}

/// A node with these records. Keys and values are shared, because they never change; each node has its own tree.
fn node(entries: &Entries) -> NodeCore {
    let mut table = Table::new(DEFAULT_LOG_LEN);
    table.load(INITIAL_REVISION, entries.iter().cloned());
    NodeCore::new(STORE, table)
}
