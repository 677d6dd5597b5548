//! What happens from outside.

use fairmesh_rib::{MAX_BATCH_BYTES, MAX_OPS};

use super::{Engine, ROOT, What};
use crate::tree::{place::Id, scenario::Action};

impl Engine<'_> {
    pub(super) fn happen(&mut self, index: usize) {
        let action = self.scenario.events[index].action.clone();
        let ends = self.now + action.lasts().nanos();
        self.lost[index].ended = ends;
        match action {
            Action::Burst { records, over } => {
                let most = MAX_OPS.min(MAX_BATCH_BYTES / self.scenario.services.endpoint_bytes as usize);
                let batches = u64::from(records).div_ceil(most as u64);
                self.push(self.now, What::Burst { left: records, pause: over.nanos() / batches });
                return;
            }
            Action::Cut { .. } => {
                if let Some(region) = self.region(index) {
                    self.cut[region] = true;
                    let cut = |id: &Id| self.places[*id].region == Some(region);
                    let children: Vec<Id> =
                        self.places[ROOT].children.values().copied().filter(cut).collect();
                    children.into_iter().for_each(|child| self.disconnect(child, index));
                }
            }
            Action::RestartRoot { .. } | Action::RestartReplicas { .. } => {
                self.concerned(index).into_iter().for_each(|id| self.stop(id, index));
            }
        }
        self.push(ends, What::End(index));
    }

    pub(super) fn end(&mut self, index: usize) {
        match self.region(index).filter(|_| matches!(self.scenario.events[index].action, Action::Cut { .. }))
        {
            Some(region) => self.cut[region] = false,
            None => self.concerned(index).into_iter().for_each(|id| self.places[id].up = true),
        }
    }

    /// A process goes away with all its connections, and keeps what is on its disk.
    fn stop(&mut self, id: Id, event: usize) {
        let children: Vec<Id> = self.places[id].children.values().copied().collect();
        children.into_iter().for_each(|child| self.disconnect(child, event));
        let place = &mut self.places[id];
        place.up = false;
        if let Some(node) = &mut place.node {
            node.restart(id != ROOT);
        }
        if id != ROOT {
            self.disconnect(id, event);
        }
    }

    /// Whom a restart is about.
    fn concerned(&self, index: usize) -> Vec<Id> {
        let Action::RestartReplicas { layer, .. } = &self.scenario.events[index].action else {
            return vec![ROOT];
        };
        let layer = self.scenario.replicas.iter().position(|one| one.name == *layer).map(|at| at + 1);
        let region = self.region(index);
        let meant = |id: &Id| {
            let place = &self.places[*id];
            Some(place.layer) == layer && (region.is_none() || place.region == region)
        };
        (0..self.places.len()).filter(meant).collect()
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
