use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{Cursor, Identity, Prefix};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Desired, FollowerState, Sink};
use crate::{Node, Watcher};

/// Follows a node in this process, without a connection.
pub(super) struct NodeFollower<S> {
    watcher: Watcher,
    sink: S,
    desired: Arc<Desired>,
    /// The subscribed prefixes, with their subscription numbers.
    subscribed: BTreeMap<Prefix, u64>,
}

impl<S: Sink> NodeFollower<S> {
    pub(super) fn new(node: &Node, software: &str, sink: S, desired: Arc<Desired>) -> Self {
        let watcher = node.watch(software, Identity::Anonymous);
        Self { watcher, sink, desired, subscribed: BTreeMap::new() }
    }

    /// Follows until `stop` or `closing`. The connection state never changes; its sender is held so that receivers
    /// can wait.
    pub(super) async fn run(
        mut self,
        _state: watch::Sender<FollowerState>,
        stop: CancellationToken,
        closing: CancellationToken,
    ) {
        loop {
            self.reconcile();
            tokio::select! {
                () = self.desired.changed.notified() => {}
                () = self.watcher.woken() => {
                    if let Some(update) = self.watcher.pull() {
                        let revision = update.revision;
                        self.sink.update(update);
                        if S::APPLIES_AT_ONCE {
                            self.desired.ack(revision);
                        }
                    }
                }
                () = stop.cancelled() => return,
                () = closing.cancelled() => return,
            }
        }
    }

    /// Subscribes to the desired prefixes, and acknowledges applied revisions.
    fn reconcile(&mut self) {
        let mut desired = self.desired.lock();
        for prefix in desired.changed.replace(Default::default()).unwrap_or_default() {
            match desired.prefixes.get(&prefix) {
                None if self.subscribed.remove(&prefix).is_some() => self.watcher.unsubscribe(&prefix),
                None => {}
                Some(wanted)
                    if self.subscribed.insert(prefix.clone(), wanted.number) == Some(wanted.number) => {}
                Some(wanted) => {
                    self.watcher.subscribe(prefix, wanted.held.as_deref().copied().map(Cursor::at))
                }
            }
        }
        if let Some(applied) = desired.ack {
            self.watcher.ack(&Cursor::at(applied));
        }
    }
}
