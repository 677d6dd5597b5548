//! Propagation of changes down the tree, and of acknowledgements up.

use std::collections::BTreeSet;

use fairmesh_rib::{Update, WokenWatchers, server::encoded_len};

use super::{Engine, Event, ROOT};
use crate::replica_tree::process::{Message, ProcessId};

impl Engine<'_> {
    /// Wakes a process whose watchers may have something to pull.
    pub(super) fn wake(&mut self, parent: ProcessId, woken: WokenWatchers) {
        for watcher in woken {
            if let Some(&child) = self.processes[parent].children.get(&watcher) {
                let connection = &mut self.processes[child].connection;
                if !std::mem::replace(&mut connection.due, true) && !connection.sending {
                    self.processes[parent].waiting.push_back(child);
                }
            }
        }
        self.schedule_serve(parent);
    }

    /// Schedules the process to serve waiting watchers, unless it is scheduled already.
    fn schedule_serve(&mut self, parent: ProcessId) {
        let process = &mut self.processes[parent];
        if !process.waiting.is_empty() && !std::mem::replace(&mut process.serving, true) {
            let at = process.cores_free.max(self.now);
            self.push(at, Event::Serve(parent));
        }
    }

    pub(super) fn serve(&mut self, parent: ProcessId) {
        let process = &mut self.processes[parent];
        process.serving = false;
        if process.cores_free > self.now {
            return self.schedule_serve(parent);
        }
        while let Some(child) = self.processes[parent].waiting.pop_front() {
            let connection = &mut self.processes[child].connection;
            connection.due = false;
            let Some(watcher) = connection.watcher else { continue };
            let update = self.processes[parent].node.as_mut().and_then(|node| node.pull(watcher));
            if let Some(update) = update {
                self.send(parent, child, update);
                break;
            }
        }
        self.schedule_serve(parent);
    }

    fn send(&mut self, parent: ProcessId, child: ProcessId, update: Update) {
        let bytes = encoded_len(&update);
        let costs = &self.scenario.costs;
        let nanos = costs.delivery.nanos() as f64 + costs.megabyte.nanos() as f64 * bytes as f64 / 1e6;
        let (parent, child_process) = two(&mut self.processes, parent, child);
        let turn = self.random.below(child_process.multiplicity);
        let departure = parent.send(self.now, Message { bytes, nanos }, turn, child_process);
        let connection = &mut child_process.connection;
        (connection.sending, connection.arrives) = (true, departure.arrives);
        let (generation, disconnected_by) = (connection.generation, connection.disconnected_by);
        let all = child_process.represents;
        let layer = &mut self.layers[child_process.layer];
        layer.sent += bytes * all;
        if !update.snapshots.is_empty() {
            layer.snapshots += all;
            layer.snapshot_bytes += bytes * all;
            if let Some(disconnections) = disconnected_by.and_then(|event| self.disconnections.get_mut(event))
            {
                disconnections.snapshots += all;
                disconnections.snapshot_bytes += bytes * all;
            }
        }
        self.push(departure.sent, Event::Sent(child, generation));
        self.push(
            departure.arrives,
            Event::Arrive { to: child, generation, update: Box::new(update), bytes },
        );
    }

    pub(super) fn sent(&mut self, child: ProcessId, generation: u32) {
        let process = &mut self.processes[child];
        if process.connection.generation != generation {
            return;
        }
        process.connection.sending = false;
        if let Some(parent) = process.parent.filter(|_| process.connection.due) {
            self.processes[parent].waiting.push_back(child);
            self.schedule_serve(parent);
        }
    }

    pub(super) fn arrive(&mut self, to: ProcessId, generation: u32, update: Box<Update>, bytes: u64) {
        let process = &mut self.processes[to];
        let layer = &mut self.layers[process.layer];
        if process.connection.generation != generation {
            layer.lost += bytes * process.represents;
            return;
        }
        process.meter.now.received += bytes;
        layer.received += bytes * process.represents;
        layer.bytes += bytes * process.represents;
        let entries: usize = update.snapshots.iter().map(|snapshot| snapshot.entries.len()).sum();
        let records = entries + update.puts.len() + update.deletes.len();
        let done = process.work(self.now, records as f64 * self.scenario.costs.record.nanos() as f64);
        self.push(done, Event::Apply { to, generation, update });
    }

    pub(super) fn apply(&mut self, to: ProcessId, generation: u32, update: Update) {
        if self.processes[to].connection.generation != generation {
            return;
        }
        self.measure(to, &update);
        let process = &mut self.processes[to];
        process.applied = update.revision.number;
        let back = process.connection.disconnected_by.take();
        let woken = process.node.as_mut().map(|node| node.apply_update(update));
        self.wake(to, woken.unwrap_or_default());
        if let Some(disconnections) = back.and_then(|event| self.disconnections.get_mut(event)) {
            disconnections.missing -= 1;
            disconnections.back = Some(self.now);
        }
    }

    /// Records the propagation times of an update's commits; commits whose values were all replaced in transit never
    /// arrive.
    fn measure(&mut self, to: ProcessId, update: &Update) {
        let process = &self.processes[to];
        let (layer, all, before) = (process.layer, process.represents, process.applied);
        let entries = update.snapshots.iter().flat_map(|snapshot| &snapshot.entries).chain(&update.puts);
        let revisions = entries.map(|(_, entry)| entry.revision).filter(|revision| *revision > before);
        let commits: BTreeSet<u64> = revisions.filter_map(|revision| self.committed(revision)).collect();
        for committed in commits {
            let before_event = self.is_before_event(committed);
            self.layers[layer].arrived(self.now - committed, before_event, all);
        }
    }

    pub(super) fn send_ack(&mut self, id: ProcessId) {
        let process = &mut self.processes[id];
        let number = process.node.as_ref().map_or(process.applied, fairmesh_rib::NodeCore::applied_by_all);
        if number > process.acked && process.connection.watcher.is_some() {
            process.acked = number;
            let (generation, at) = (process.connection.generation, self.now + process.delay);
            self.push(at, Event::ReceiveAck { from: id, generation, number });
        }
        self.repeat(self.scenario.acknowledge.nanos(), Event::SendAck(id));
    }

    pub(super) fn receive_ack(&mut self, from: ProcessId, generation: u32, number: u64) {
        let process = &self.processes[from];
        let (Some(parent), Some(watcher)) = (process.parent, process.connection.watcher) else { return };
        if process.connection.generation != generation {
            return;
        }
        let Some(node) = self.processes[parent].node.as_mut() else { return };
        node.ack(watcher, number);
        if parent == ROOT {
            let all = node.applied_by_all();
            for revision in self.acknowledged + 1..=all {
                if let Some(at) =
                    self.committed(revision).filter(|at| self.is_before_event(*at) == Some(true))
                {
                    self.ack_latency.saturating_record((self.now - at) / 1000);
                }
            }
            self.acknowledged = self.acknowledged.max(all);
        }
    }
}

/// Mutable references to two different elements.
fn two<T>(all: &mut [T], one: usize, other: usize) -> (&mut T, &mut T) {
    // Parents come before their children in the list.
    let (left, right) = all.split_at_mut(other);
    (&mut left[one], &mut right[0])
}
