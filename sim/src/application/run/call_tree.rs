//! Call trees: the calls that an operation makes, and the progress of each call in flight.

use std::collections::BTreeSet;

use fairmesh_model::{
    CallNode, Invalid, Label,
    arith::{Generator, mix_pair},
};

use crate::{
    application::{Call, Scenario},
    caller::Demand,
    sampling::unit,
    scenario::Requests,
};

/// Stands for the parent of clients' calls, which have none.
const NO_PARENT: u32 = u32::MAX;
/// Salts for the random draws of a call: its demand, and the number of calls that it makes.
const DEMAND_SALT: u64 = 5;
const TIMES_SALT: u64 = 6;

/// The operations of an application, and the calls between them.
#[derive(Clone, Debug)]
pub(crate) struct CallTrees {
    pub(crate) operations: Vec<TreeOperation>,
    /// Edges from clients first, then edges from operations in order, as in the optimizer's problem.
    pub(crate) edges: Vec<TreeEdge>,
    /// Index of the edge for each group of clients.
    pub(crate) client_edges: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct TreeOperation {
    /// Position of the operation's service.
    pub(crate) service: u16,
    pub(crate) node: CallNode,
    demand: Requests,
    /// Edges of each stage, as half-open ranges.
    stages: Vec<(u32, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) struct TreeEdge {
    pub(crate) operation: u16,
    /// The calling operation; `None` for clients.
    pub(crate) parent: Option<u16>,
    times: f64,
    is_parallel: bool,
    pub(crate) request_bytes: f64,
    pub(crate) response_bytes: f64,
}

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewCall {
    pub(crate) edge: u32,
    /// Number of calls over the edge that remain; each is made after the response to the previous one.
    pub(crate) left: u16,
    pub(crate) seed: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Responded,
    Failed,
    /// A table dropped the call before it was sent.
    Dropped,
}

/// A call in flight as part of its tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreeCall {
    pub(crate) edge: u32,
    pub(crate) left: u16,
    /// Seed of all random draws of the call and its children, so that all planners get the same trees.
    seed: u64,
    parent: u32,
    /// Generation of the parent's entry, by which the loss of the parent is recognised.
    pub(crate) parent_generation: u32,
    stage: u16,
    /// Unfinished chains of calls in the current stage.
    pub(crate) pending: u16,
    /// Whether a call that it made has failed.
    pub(crate) has_failed: bool,
    /// Time since which none of its own calls is in flight, and the sum of earlier such times.
    pub(crate) alone_since: u64,
    pub(crate) exclusive: u64,
}

impl TreeCall {
    pub(crate) fn root(edge: u32, seed: u64) -> Self {
        Self { edge, seed, parent: NO_PARENT, ..Self::default() }
    }

    pub(crate) fn child(call: NewCall, parent: u32, parent_generation: u32) -> Self {
        Self {
            edge: call.edge,
            left: call.left,
            seed: call.seed,
            parent,
            parent_generation,
            ..Self::default()
        }
    }

    /// Seed of the call's random draws.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn parent(&self) -> Option<u32> {
        (self.parent != NO_PARENT).then_some(self.parent)
    }

    /// The next call of the chain.
    pub(crate) fn next_of_chain(&self) -> Option<NewCall> {
        let left = self.left.checked_sub(1)?;
        Some(NewCall { edge: self.edge, left, seed: mix_pair(self.seed, u64::from(left)) })
    }
}

impl CallTrees {
    pub(crate) fn new(scenario: &Scenario) -> Result<Self, Invalid> {
        let position = |name: &str| scenario.operation(name).unwrap_or_default() as u16;
        let clients = scenario.clients.iter().map(|clients| TreeEdge {
            operation: position(&clients.to),
            parent: None,
            times: 1.0,
            is_parallel: false,
            request_bytes: 0.0,
            response_bytes: 0.0,
        });
        let mut edges: Vec<TreeEdge> = clients.collect();
        let mut operations = Vec::new();
        for (parent, operation) in (0..).zip(&scenario.operations) {
            let mut stages = Vec::new();
            for stage in &operation.calls {
                let first = edges.len() as u32;
                edges.extend(stage.iter().map(|call| TreeEdge::new(call, position(&call.to), parent)));
                stages.push((first, edges.len() as u32));
            }
            operations.push(TreeOperation {
                service: scenario.service(&operation.service).unwrap_or_default() as u16,
                node: node(scenario, usize::from(parent))?,
                demand: operation.demand(),
                stages,
            });
        }
        let client_edges = scenario.client_groups().map(|(at, ..)| at as u32).collect();
        Ok(Self { operations, edges, client_edges })
    }

    /// Number of services that have operations.
    pub(crate) fn services(&self) -> usize {
        self.operations.iter().map(|operation| usize::from(operation.service) + 1).max().unwrap_or(0)
    }

    /// Returns the services that the operations of `service` call.
    pub(crate) fn called_by(&self, service: u16) -> BTreeSet<u16> {
        let is_of = |parent: u16| self.operations[usize::from(parent)].service == service;
        let edges = self.edges.iter().filter(|edge| edge.parent.is_some_and(is_of));
        edges.map(|edge| self.operations[usize::from(edge.operation)].service).collect()
    }

    pub(crate) fn operation_of(&self, edge: u32) -> u16 {
        self.edges[edge as usize].operation
    }

    /// Demand of a call on its server.
    pub(crate) fn demand(&self, call: &NewCall) -> Demand {
        let requests = &self.operations[usize::from(self.operation_of(call.edge))].demand;
        let mut random = Generator::new(mix_pair(call.seed, DEMAND_SALT));
        let cpu = requests.cpu.sample(&mut random);
        let wait = requests.wait.map_or(0, |wait| wait.sample(&mut random) as u64);
        Demand { cpu, wait, stream: false }
    }

    /// Advances a call to its next stage that makes calls.
    pub(crate) fn next_calls(&self, call: &mut TreeCall, now: u64) -> Vec<NewCall> {
        let operation = &self.operations[usize::from(self.operation_of(call.edge))];
        let mut new = Vec::new();
        while let Some((first, end)) = operation.stages.get(usize::from(call.stage)) {
            call.stage += 1;
            (*first..*end).for_each(|edge| self.draw(call.seed, edge, &mut new));
            if !new.is_empty() {
                call.pending = new.len() as u16;
                call.exclusive += now - call.alone_since;
                break;
            }
        }
        new
    }

    /// Draws the number of calls over an edge: the mean, rounded up or down at random.
    fn draw(&self, seed: u64, number: u32, new: &mut Vec<NewCall>) {
        let edge = &self.edges[number as usize];
        let seed = mix_pair(seed, u64::from(number));
        let chance = unit(&mut Generator::new(mix_pair(seed, TIMES_SALT)));
        let times = edge.times.floor() as u16 + u16::from(chance < edge.times.fract());
        let Some(left) = times.checked_sub(1) else { return };
        if !edge.is_parallel {
            return new.push(NewCall { edge: number, left, seed });
        }
        let calls = 0..=left;
        new.extend(calls.map(|n| NewCall { edge: number, left: 0, seed: mix_pair(seed, n.into()) }));
    }
}

impl TreeEdge {
    fn new(call: &Call, operation: u16, parent: u16) -> Self {
        Self {
            operation,
            parent: Some(parent),
            times: call.times,
            is_parallel: call.parallel,
            request_bytes: call.request,
            response_bytes: call.response,
        }
    }
}

/// The node of an operation. The first operation of a service stands for calls without a class.
fn node(scenario: &Scenario, operation: usize) -> Result<CallNode, Invalid> {
    let of = &scenario.operations[operation];
    let service = scenario.service(&of.service).unwrap_or_default();
    let is_first = scenario.operations[..operation].iter().all(|other| other.service != of.service);
    Ok(CallNode {
        service: scenario.service_names()?[service].clone(),
        class: if is_first { None } else { Some(Label::new(of.name.clone())?) },
    })
}
