use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use fairmesh_rib::Node;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use crate::{Triggers, Wake};

/// Decides when the next round of a controller is due.
#[derive(Debug)]
pub(crate) struct Schedule {
    triggers: Triggers,
    node: Node,
    /// The node's revisions, for a controller with prefixes as triggers.
    revisions: Option<watch::Receiver<u64>>,
    /// The last revision whose changes were examined.
    examined: u64,
    /// Whether anything changed since the start of the last successful round.
    has_changed: bool,
    /// Time of the next round if nothing changes.
    due: Option<Instant>,
    /// Earliest time of the next round, regardless of changes.
    not_before: Instant,
}

impl Schedule {
    /// Creates a schedule whose first round is due at once.
    pub(crate) fn new(triggers: Triggers, node: &Node) -> Self {
        let revisions = (!triggers.prefixes.is_empty()).then(|| node.revisions());
        let (examined, not_before) = (node.revision().number, Instant::now());
        Self { triggers, node: node.clone(), revisions, examined, has_changed: true, due: None, not_before }
    }

    /// Time at which the next round begins; `None` if only a change starts it.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.has_changed {
            true => Some(self.not_before),
            false => self.due.map(|due| due.max(self.not_before)),
        }
    }

    /// Waits until a round is due. Changes until then are covered by this round.
    pub(crate) async fn wait(&mut self) -> Wake {
        while !self.has_changed && self.due.is_none_or(|due| Instant::now() < due) {
            self.wait_for_trigger().await;
        }
        sleep_until(self.not_before).await;
        self.take_changes();
        if self.has_changed { Wake::Changed } else { Wake::Interval }
    }

    /// Waits for a commit, a notification, or the end of the interval. Also returns after commits outside the prefixes.
    pub(crate) async fn wait_for_trigger(&mut self) {
        let notify = self.triggers.notify.clone();
        tokio::select! {
            () = notified(notify.as_ref()) => self.has_changed = true,
            () = committed(self.revisions.as_mut()) => self.examine_commits(),
            () = until(self.due) => {}
        }
    }

    /// Records that the round that began at `began` succeeded.
    pub(crate) fn succeeded(&mut self, began: Instant) {
        self.has_changed = false;
        self.due = self.triggers.interval.map(|interval| began + interval);
        self.keep_gap(began);
    }

    /// Keeps the minimum time between the round that began at `began` and the next one.
    pub(crate) fn keep_gap(&mut self, began: Instant) {
        self.not_before = began + self.triggers.min_gap;
    }

    /// Records that the round waits for the lease. Without a change, the next round is due after its interval.
    pub(crate) fn postpone(&mut self) {
        self.due = self.triggers.interval.map(|interval| Instant::now() + interval);
    }

    /// Repeats the round after a pause. The next round still covers the changes that started this one.
    pub(crate) fn retry_after(&mut self, pause: Duration) {
        self.not_before = Instant::now() + pause;
        self.due = Some(self.not_before);
    }

    fn take_changes(&mut self) {
        self.examine_commits();
        if let Some(notify) = &self.triggers.notify {
            // Takes a notification that arrived before the round could begin.
            self.has_changed |= pin!(notify.notified()).enable();
        }
    }

    /// Checks for changes below the prefixes. If the node's log does not reach back far enough, that counts
    /// as a change.
    fn examine_commits(&mut self) {
        let Some(revisions) = &mut self.revisions else { return };
        revisions.borrow_and_update();
        let prefixes = &self.triggers.prefixes;
        let changes =
            self.node.changes_since(self.examined, |key| prefixes.iter().any(|prefix| prefix.covers(key)));
        let (revision, has_changed) = match changes {
            Some((revision, changed)) => (revision, !changed.is_empty()),
            None => (self.node.revision().number, true),
        };
        self.examined = revision;
        self.has_changed |= has_changed;
    }
}

async fn notified(notify: Option<&Arc<Notify>>) {
    match notify {
        Some(notify) => notify.notified().await,
        None => pending().await,
    }
}

async fn committed(revisions: Option<&mut watch::Receiver<u64>>) {
    match revisions {
        // The node lives as long as the schedule, and so does its sender.
        Some(revisions) => drop(revisions.changed().await),
        None => pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
