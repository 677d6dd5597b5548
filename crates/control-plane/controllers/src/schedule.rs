use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use fairmesh_rib::Node;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use crate::{Triggers, Wake};

/// When the next round of a controller is due.
#[derive(Debug)]
pub(crate) struct Schedule {
    triggers: Triggers,
    node: Node,
    /// Revisions of the node, for a controller that prefixes trigger.
    revisions: Option<watch::Receiver<u64>>,
    /// The last revision whose changes were examined.
    examined: u64,
    /// Whether anything changed since the start of the last successful round.
    has_changed: bool,
    /// When a round is due without a change.
    due: Option<Instant>,
    /// No round begins earlier, whatever changes.
    not_before: Instant,
}

impl Schedule {
    /// The first round is due at once.
    pub(crate) fn new(triggers: Triggers, node: &Node) -> Self {
        let revisions = (!triggers.prefixes.is_empty()).then(|| node.revisions());
        let (examined, not_before) = (node.revision().number, Instant::now());
        Self { triggers, node: node.clone(), revisions, examined, has_changed: true, due: None, not_before }
    }

    /// When the next round begins; `None` if only a change starts one.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.has_changed {
            true => Some(self.not_before),
            false => self.due.map(|due| due.max(self.not_before)),
        }
    }

    /// Waits until a round is due. Changes until then belong to this round.
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

    /// The round that began then succeeded.
    pub(crate) fn succeeded(&mut self, began: Instant) {
        self.has_changed = false;
        self.due = self.triggers.interval.map(|interval| began + interval);
        self.keep_gap(began);
    }

    /// Keeps the least time between the round that began then and the next one.
    pub(crate) fn keep_gap(&mut self, began: Instant) {
        self.not_before = began + self.triggers.min_gap;
    }

    /// The round waits for something else than time: without a change it is due after its interval.
    pub(crate) fn postpone(&mut self) {
        self.due = self.triggers.interval.map(|interval| Instant::now() + interval);
    }

    /// The round has to be repeated after a pause. What woke it counts for the next one too.
    pub(crate) fn retry_after(&mut self, pause: Duration) {
        self.not_before = Instant::now() + pause;
        self.due = Some(self.not_before);
    }

    fn take_changes(&mut self) {
        self.examine_commits();
        if let Some(notify) = &self.triggers.notify {
            // Takes a notification that arrived while the round had to wait.
            self.has_changed |= pin!(notify.notified()).enable();
        }
    }

    /// Looks for changes below the prefixes. A log that does not reach back far enough counts as a change.
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
