//! How connections are lost and made again.

use fairmesh_model::{Cursor, Revision};
use fairmesh_rib::upstream::Backoff;

use super::{Engine, ROOT, STORE, What};
use crate::tree::place::Id;

/// Round trips until a connection serves: one for TCP, one for the handshake.
const ROUND_TRIPS: u64 = 2;

impl Engine<'_> {
    /// A process loses its connection to a happening; what is on its way to it is lost.
    pub(super) fn disconnect(&mut self, child: Id, event: usize) {
        let place = &mut self.places[child];
        let connection = &mut place.connection;
        if let Some(lost) = connection.lost_to.replace(event).and_then(|earlier| self.lost.get_mut(earlier)) {
            // It counts with the later one from now on.
            lost.missing -= 1;
        }
        self.lost[event].missing += 1;
        self.lost[event].processes += place.stands_for;
        connection.generation += 1;
        (connection.sending, connection.due, connection.arrives) = (false, false, 0);
        connection.failures = 0;
        let watcher = connection.watcher.take();
        if let (Some(parent), Some(watcher)) = (place.parent, watcher) {
            let parent = &mut self.places[parent];
            parent.children.remove(&watcher);
            parent.waiting.retain(|waiting| *waiting != child);
            if let Some(node) = &mut parent.node {
                node.leave(watcher);
            }
        }
        self.retry(child);
    }

    fn retry(&mut self, child: Id) {
        let connection = &mut self.places[child].connection;
        connection.failures += 1;
        let wait = Backoff::default().delay(connection.failures, self.random.next());
        let generation = connection.generation;
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.push(self.now + nanos, What::Connect(child, generation));
    }

    pub(super) fn connect(&mut self, child: Id, generation: u32) {
        if self.places[child].connection.generation != generation {
            return;
        }
        if self.reaches(child) {
            let at = self.now + 2 * ROUND_TRIPS * self.places[child].delay;
            self.push(at, What::Joined(child, generation));
        } else {
            self.retry(child);
        }
    }

    /// Subscribes from where it stands.
    pub(super) fn joined(&mut self, child: Id, generation: u32) {
        if self.places[child].connection.generation != generation {
            return;
        }
        let (true, Some(parent)) = (self.reaches(child), self.places[child].parent) else {
            return self.retry(child);
        };
        let place = &self.places[child];
        let from = Cursor::at(Revision { store: STORE, partition: 0, number: place.applied });
        let wants = place.wants.clone();
        let Some(node) = self.places[parent].node.as_mut() else { return };
        let watcher = node.join();
        for prefix in wants {
            node.subscribe(watcher, prefix, Some(from.clone()));
        }
        self.places[child].connection.watcher = Some(watcher);
        // What it had said before counts for nothing with a parent that starts anew.
        self.places[child].acked = 0;
        self.places[parent].children.insert(watcher, child);
        self.wake(parent, [watcher].into());
    }

    fn reaches(&self, child: Id) -> bool {
        let place = &self.places[child];
        let Some(parent) = place.parent else { return false };
        let cut = parent == ROOT && place.region.is_some_and(|region| self.cut[region]);
        place.up && self.places[parent].up && !cut
    }
}
