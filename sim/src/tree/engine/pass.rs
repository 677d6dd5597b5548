//! How changes go down the tree, and acknowledgements up.

use std::collections::BTreeSet;

use fairmesh_rib::{Update, Woken, server::encoded_len};

use super::{Engine, ROOT, What};
use crate::tree::place::{Id, Message};

impl Engine<'_> {
    /// Those who watch a process may have something to pull.
    pub(super) fn wake(&mut self, parent: Id, woken: Woken) {
        for watcher in woken {
            if let Some(&child) = self.places[parent].children.get(&watcher) {
                let connection = &mut self.places[child].connection;
                if !std::mem::replace(&mut connection.due, true) && !connection.sending {
                    self.places[parent].waiting.push_back(child);
                }
            }
        }
        self.start(parent);
    }

    /// Has a process turn to those who wait, unless it is at it.
    fn start(&mut self, parent: Id) {
        let place = &mut self.places[parent];
        if !place.waiting.is_empty() && !std::mem::replace(&mut place.serving, true) {
            let at = place.cores_free.max(self.now);
            self.push(at, What::Serve(parent));
        }
    }

    pub(super) fn serve(&mut self, parent: Id) {
        let place = &mut self.places[parent];
        place.serving = false;
        if place.cores_free > self.now {
            return self.start(parent);
        }
        while let Some(child) = self.places[parent].waiting.pop_front() {
            let connection = &mut self.places[child].connection;
            connection.due = false;
            let Some(watcher) = connection.watcher else { continue };
            let update = self.places[parent].node.as_mut().and_then(|node| node.pull(watcher));
            if let Some(update) = update {
                self.send(parent, child, update);
                break;
            }
        }
        self.start(parent);
    }

    fn send(&mut self, parent: Id, child: Id, update: Update) {
        let bytes = encoded_len(&update);
        let costs = &self.scenario.costs;
        let nanos = costs.delivery.nanos() as f64 + costs.megabyte.nanos() as f64 * bytes as f64 / 1e6;
        let (parent, child_place) = two(&mut self.places, parent, child);
        let turn = self.random.below(child_place.alike);
        let departure = parent.send(self.now, Message { bytes, nanos }, turn, child_place);
        let connection = &mut child_place.connection;
        (connection.sending, connection.arrives) = (true, departure.arrives);
        let (generation, lost_to) = (connection.generation, connection.lost_to);
        let all = child_place.stands_for;
        let layer = &mut self.layers[child_place.layer];
        layer.sent += bytes * all;
        if !update.snapshots.is_empty() {
            layer.snapshots += all;
            layer.snapshot_bytes += bytes * all;
            if let Some(lost) = lost_to.and_then(|event| self.lost.get_mut(event)) {
                lost.snapshots += all;
                lost.snapshot_bytes += bytes * all;
            }
        }
        self.push(departure.sent, What::Sent(child, generation));
        self.push(departure.arrives, What::Arrive { to: child, generation, update: Box::new(update), bytes });
    }

    pub(super) fn sent(&mut self, child: Id, generation: u32) {
        let place = &mut self.places[child];
        if place.connection.generation != generation {
            return;
        }
        place.connection.sending = false;
        if let Some(parent) = place.parent.filter(|_| place.connection.due) {
            self.places[parent].waiting.push_back(child);
            self.start(parent);
        }
    }

    pub(super) fn arrive(&mut self, to: Id, generation: u32, update: Box<Update>, bytes: u64) {
        let place = &mut self.places[to];
        let layer = &mut self.layers[place.layer];
        if place.connection.generation != generation {
            layer.lost += bytes * place.stands_for;
            return;
        }
        place.meter.now.received += bytes;
        layer.received += bytes * place.stands_for;
        layer.bytes += bytes * place.stands_for;
        let entries: usize = update.snapshots.iter().map(|snapshot| snapshot.entries.len()).sum();
        let records = entries + update.puts.len() + update.deletes.len();
        let done = place.work(self.now, records as f64 * self.scenario.costs.record.nanos() as f64);
        self.push(done, What::Apply { to, generation, update });
    }

    pub(super) fn apply(&mut self, to: Id, generation: u32, update: Update) {
        if self.places[to].connection.generation != generation {
            return;
        }
        self.measure(to, &update);
        let place = &mut self.places[to];
        place.applied = update.revision.number;
        let back = place.connection.lost_to.take();
        let woken = place.node.as_mut().map(|node| node.absorb(update));
        self.wake(to, woken.unwrap_or_default());
        if let Some(lost) = back.and_then(|event| self.lost.get_mut(event)) {
            lost.missing -= 1;
            lost.back = Some(self.now);
        }
    }

    /// How long the commits of an update took; values that were replaced on the way never come, and their commits with them.
    fn measure(&mut self, to: Id, update: &Update) {
        let place = &self.places[to];
        let (layer, all, before) = (place.layer, place.stands_for, place.applied);
        let entries = update.snapshots.iter().flat_map(|snapshot| &snapshot.entries).chain(&update.puts);
        let revisions = entries.map(|(_, entry)| entry.revision).filter(|revision| *revision > before);
        let commits: BTreeSet<u64> = revisions.filter_map(|revision| self.committed(revision)).collect();
        for committed in commits {
            let calm = self.is_calm(committed);
            self.layers[layer].arrived(self.now - committed, calm, all);
        }
    }

    pub(super) fn report(&mut self, id: Id) {
        let place = &mut self.places[id];
        let number = place.node.as_ref().map_or(place.applied, fairmesh_rib::PlainNode::applied_by_all);
        if number > place.acked && place.connection.watcher.is_some() {
            place.acked = number;
            let (generation, at) = (place.connection.generation, self.now + place.delay);
            self.push(at, What::Acked { from: id, generation, number });
        }
        self.again(self.scenario.acknowledge.nanos(), What::Report(id));
    }

    pub(super) fn acked(&mut self, from: Id, generation: u32, number: u64) {
        let place = &self.places[from];
        let (Some(parent), Some(watcher)) = (place.parent, place.connection.watcher) else { return };
        if place.connection.generation != generation {
            return;
        }
        let Some(node) = self.places[parent].node.as_mut() else { return };
        node.acked(watcher, number);
        if parent == ROOT {
            let all = node.applied_by_all();
            for revision in self.acknowledged + 1..=all {
                if let Some(at) = self.committed(revision).filter(|at| self.is_calm(*at) == Some(true)) {
                    self.acknowledging.saturating_record((self.now - at) / 1000);
                }
            }
            self.acknowledged = self.acknowledged.max(all);
        }
    }
}

/// Two different places at once.
fn two<T>(all: &mut [T], one: usize, other: usize) -> (&mut T, &mut T) {
    // Parents come before their children in the list.
    let (left, right) = all.split_at_mut(other);
    (&mut left[one], &mut right[0])
}
