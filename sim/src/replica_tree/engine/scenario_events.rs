//! Scenario events.

use fairmesh_rib::{MAX_BATCH_BYTES, MAX_OPS};

use super::{Engine, Event, ROOT};
use crate::replica_tree::{process::ProcessId, scenario::Action};

impl Engine<'_> {
    pub(super) fn begin_event(&mut self, index: usize) {
        let action = self.scenario.events[index].action.clone();
        let ends = self.now + action.duration().nanos();
        self.disconnections[index].ended = ends;
        match action {
            Action::Burst { records, over } => {
                let most = MAX_OPS.min(MAX_BATCH_BYTES / self.scenario.services.endpoint_bytes as usize);
                let batches = u64::from(records).div_ceil(most as u64);
                self.push(self.now, Event::Burst { left: records, pause: over.nanos() / batches });
                return;
            }
            Action::Cut { .. } => {
                if let Some(region) = self.region(index) {
                    self.disconnected_regions[region] = true;
                    let in_region = |id: &ProcessId| self.processes[*id].region == Some(region);
                    let children: Vec<ProcessId> =
                        self.processes[ROOT].children.values().copied().filter(in_region).collect();
                    children.into_iter().for_each(|child| self.disconnect(child, index));
                }
            }
            Action::RestartRoot { .. } | Action::RestartReplicas { .. } => {
                self.affected(index).into_iter().for_each(|id| self.stop(id, index));
            }
        }
        self.push(ends, Event::End(index));
    }

    pub(super) fn end_event(&mut self, index: usize) {
        match self.region(index).filter(|_| matches!(self.scenario.events[index].action, Action::Cut { .. }))
        {
            Some(region) => self.disconnected_regions[region] = false,
            None => self.affected(index).into_iter().for_each(|id| self.processes[id].up = true),
        }
    }

    /// Stops a process with all its connections; its disk stays.
    fn stop(&mut self, id: ProcessId, event: usize) {
        let children: Vec<ProcessId> = self.processes[id].children.values().copied().collect();
        children.into_iter().for_each(|child| self.disconnect(child, event));
        let process = &mut self.processes[id];
        process.up = false;
        if let Some(node) = &mut process.node {
            node.restart(id != ROOT);
        }
        if id != ROOT {
            self.disconnect(id, event);
        }
    }

    /// The processes that a restart affects.
    fn affected(&self, index: usize) -> Vec<ProcessId> {
        let Action::RestartReplicas { layer, .. } = &self.scenario.events[index].action else {
            return vec![ROOT];
        };
        let layer = self.scenario.replicas.iter().position(|one| one.name == *layer).map(|at| at + 1);
        let region = self.region(index);
        let is_affected = |id: &ProcessId| {
            let process = &self.processes[*id];
            Some(process.layer) == layer && (region.is_none() || process.region == region)
        };
        (0..self.processes.len()).filter(is_affected).collect()
    }

    fn region(&self, index: usize) -> Option<usize> {
        let name = match &self.scenario.events[index].action {
            Action::Cut { region, .. } => Some(region),
            Action::RestartReplicas { region, .. } => region.as_ref(),
            _ => None,
        }?;
        self.scenario.regions.iter().position(|region| region.name == *name)
    }
}
