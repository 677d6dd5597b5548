//! Loss and re-establishment of connections.

use fairmesh_model::{Cursor, Revision};
use fairmesh_rib::follower::Backoff;

use super::{Engine, Event, ROOT, STORE};
use crate::replica_tree::process::ProcessId;

/// Round trips until a connection serves: one for TCP, one for the handshake.
const ROUND_TRIPS: u64 = 2;

impl Engine<'_> {
    /// Breaks the connection of a process because of a scenario event; messages in transit to it are lost.
    pub(super) fn disconnect(&mut self, child: ProcessId, event: usize) {
        let process = &mut self.processes[child];
        let connection = &mut process.connection;
        if let Some(previous) =
            connection.disconnected_by.replace(event).and_then(|earlier| self.disconnections.get_mut(earlier))
        {
            // From now on the process counts for the later event.
            previous.missing -= 1;
        }
        self.disconnections[event].missing += 1;
        self.disconnections[event].processes += process.represents;
        connection.generation += 1;
        (connection.sending, connection.due, connection.arrives) = (false, false, 0);
        connection.failures = 0;
        let watcher = connection.watcher.take();
        if let (Some(parent), Some(watcher)) = (process.parent, watcher) {
            let parent = &mut self.processes[parent];
            parent.children.remove(&watcher);
            parent.waiting.retain(|waiting| *waiting != child);
            if let Some(node) = &mut parent.node {
                node.leave(watcher);
            }
        }
        self.retry(child);
    }

    fn retry(&mut self, child: ProcessId) {
        let connection = &mut self.processes[child].connection;
        connection.failures += 1;
        let wait = Backoff::default().delay(connection.failures, self.random.next());
        let generation = connection.generation;
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.push(self.now + nanos, Event::Connect(child, generation));
    }

    pub(super) fn connect(&mut self, child: ProcessId, generation: u32) {
        if self.processes[child].connection.generation != generation {
            return;
        }
        if self.is_reachable(child) {
            let at = self.now + 2 * ROUND_TRIPS * self.processes[child].delay;
            self.push(at, Event::Connected(child, generation));
        } else {
            self.retry(child);
        }
    }

    /// Subscribes from the revision that the process has applied.
    pub(super) fn connected(&mut self, child: ProcessId, generation: u32) {
        if self.processes[child].connection.generation != generation {
            return;
        }
        let (true, Some(parent)) = (self.is_reachable(child), self.processes[child].parent) else {
            return self.retry(child);
        };
        let process = &self.processes[child];
        let from = Cursor::at(Revision { store: STORE, partition: 0, number: process.applied });
        let prefixes = process.prefixes.clone();
        let Some(node) = self.processes[parent].node.as_mut() else { return };
        let watcher = node.join();
        for prefix in prefixes {
            node.subscribe(watcher, prefix, Some(from.clone()));
        }
        self.processes[child].connection.watcher = Some(watcher);
        // A parent that restarts knows no earlier acknowledgements.
        self.processes[child].acked = 0;
        self.processes[parent].children.insert(watcher, child);
        self.wake(parent, [watcher].into());
    }

    fn is_reachable(&self, child: ProcessId) -> bool {
        let process = &self.processes[child];
        let Some(parent) = process.parent else { return false };
        let is_cut_off =
            parent == ROOT && process.region.is_some_and(|region| self.disconnected_regions[region]);
        process.up && self.processes[parent].up && !is_cut_off
    }
}
