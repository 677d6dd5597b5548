//! The tree as it stands at the start: everybody holds what the root holds, and connects.

use std::sync::Arc;

use fairmesh_model::{Invalid, Prefix, arith::Generator};
use fairmesh_rib::{DEFAULT_LOG, Entry, PlainNode, Table};

use super::{Engine, Lost, ROOT, SECOND, STORE, What};
use crate::{
    queue::Queue,
    scenario::Span,
    tree::{
        catalogue::{Catalogue, FIRST, together},
        meter::{LayerMeter, histogram},
        place::{Id, Place},
        scenario::{Link, Machine, Scenario},
        writes::Writers,
    },
};

type Entries = Vec<(Arc<str>, Entry)>;

/// What a program runs on: enough.
const PROGRAM: Machine = Machine { cores: 1.0, gigabits: 100.0 };

pub(super) fn build(scenario: &Scenario) -> Result<Engine<'_>, Invalid> {
    let catalogue = Catalogue::new(scenario)?;
    let entries = catalogue.entries()?;
    let mut random = Generator::new(scenario.seed);
    let first_event = scenario.events.iter().map(|event| event.at.nanos()).min().unwrap_or(u64::MAX);
    let layers = scenario.replicas.len() + 3;
    let mut engine = Engine {
        scenario,
        catalogue,
        writers: Writers::new(&scenario.writes, random.next()),
        now: 0,
        queue: Queue::new(1e5),
        events: Vec::new(),
        free: Vec::new(),
        live: 0,
        places: Vec::new(),
        layers: (0..layers).map(|_| LayerMeter::new()).collect(),
        commits: Vec::new(),
        refused: 0,
        acknowledged: FIRST,
        acknowledging: histogram(),
        cut: vec![false; scenario.regions.len()],
        lost: vec![Lost::default(); scenario.events.len()],
        first_event,
        random,
    };
    engine.plant(&entries);
    drop(entries);
    engine.begin();
    Ok(engine)
}

/// Processes of a layer that are to be placed under one parent.
struct Group {
    layer: usize,
    count: u32,
    played: Option<u32>,
    link: Link,
    machine: Machine,
}

impl Engine<'_> {
    fn plant(&mut self, entries: &Entries) {
        let mut root = Place::new(0, self.scenario.root, self.scenario.root.gigabits);
        root.node = Some(node(entries));
        root.applied = FIRST;
        self.places.push(root);
        let mut layer = Vec::new();
        for (at, replicas) in self.scenario.replicas.iter().enumerate() {
            let (count, played) = (replicas.count, replicas.played);
            let group =
                Group { layer: at + 1, count, played, link: replicas.link, machine: replicas.machine };
            layer = match at {
                0 => (0..self.scenario.regions.len()).flat_map(|region| self.first(region, &group)).collect(),
                _ => layer.into_iter().flat_map(|parent| self.under(parent, &group)).collect(),
            };
            for &id in &layer {
                self.places[id].wants = vec![Prefix::everything()];
                self.places[id].node = Some(node(entries));
            }
        }
        let agents = &self.scenario.agents;
        let (count, played) = (agents.count, agents.played);
        let at = self.scenario.replicas.len() + 1;
        let group = Group { layer: at, count, played, link: agents.link, machine: agents.machine };
        for replica in layer {
            for agent in self.under(replica, &group) {
                self.furnish(agent);
            }
        }
    }

    /// Places the replicas of the first layer in a region.
    fn first(&mut self, region: usize, group: &Group) -> Vec<Id> {
        let placed = self.under(ROOT, group);
        for &id in &placed {
            self.places[id].region = Some(region);
            self.places[id].delay += self.scenario.regions[region].delay.nanos();
        }
        placed
    }

    /// Places those of a group that are played; the others are shared out among them.
    fn under(&mut self, parent: Id, group: &Group) -> Vec<Id> {
        let played = group.played.unwrap_or(group.count);
        let (region, above) = (self.places[parent].region, self.places[parent].stands_for);
        let mut placed = Vec::new();
        for n in 0..played {
            let mut place = Place::new(group.layer, group.machine, group.link.gigabits);
            place.alike = u64::from(group.count / played + u32::from(n < group.count % played));
            place.stands_for = above * place.alike;
            place.delay = group.link.delay.nanos();
            (place.parent, place.region, place.applied) = (Some(parent), region, FIRST);
            placed.push(self.places.len());
            self.places.push(place);
        }
        placed
    }

    /// Gives an agent its programs, and each of them what it calls.
    fn furnish(&mut self, agent: Id) {
        let agents = &self.scenario.agents;
        let calls: Vec<Vec<usize>> = (0..agents.programs)
            .map(|_| (0..agents.calls).map(|_| self.catalogue.called(&mut self.random)).collect())
            .collect();
        self.places[agent].wants = self.wants(&together(&calls).into_iter().collect::<Vec<_>>());
        self.places[agent].node = self.part(agent);
        let link = Link { delay: agents.local, gigabits: PROGRAM.gigabits };
        let layer = self.places[agent].layer + 1;
        let group = Group { layer, count: agents.programs, played: None, link, machine: PROGRAM };
        for (program, mut calls) in self.under(agent, &group).into_iter().zip(calls) {
            calls.sort_unstable();
            calls.dedup();
            self.places[program].wants = self.wants(&calls);
            if self.scenario.compare {
                self.places[program].node = self.part(program);
            }
        }
    }

    fn wants(&self, services: &[usize]) -> Vec<Prefix> {
        services.iter().flat_map(|service| self.catalogue.prefixes(*service)).collect()
    }

    /// A node with what the root has of what a process wants.
    fn part(&self, id: Id) -> Option<PlainNode> {
        let root = self.places[ROOT].node.as_ref()?;
        Some(node(&root.table().read(&self.places[id].wants)))
    }

    fn begin(&mut self) {
        for id in 1..self.places.len() {
            self.push(0, What::Joined(id, 0));
            let pause = self.scenario.acknowledge.nanos();
            let first = self.random.below(pause);
            self.push(first, What::Report(id));
        }
        self.push(SECOND, What::Second);
        let first = self.writers.pause();
        self.push(first, What::Write);
        for (index, event) in self.scenario.events.iter().enumerate() {
            self.push(Span::nanos(event.at), What::Happen(index));
        }
    }
}

/// A node of those records. Keys and values are shared, as nothing changes them; each has a tree of its own.
fn node(entries: &Entries) -> PlainNode {
    let mut table = Table::new(DEFAULT_LOG);
    table.load(FIRST, entries.iter().cloned());
    PlainNode::new(STORE, table)
}
