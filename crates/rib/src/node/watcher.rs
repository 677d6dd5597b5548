use std::sync::Arc;

use fairmesh_model::{Cursor, Prefix};
use tokio::sync::Notify;

use super::Node;
use crate::{About, Update, hub::WatcherId};

/// One watcher of a [`Node`]; dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    node: Node,
    id: WatcherId,
    notify: Arc<Notify>,
}

impl Watcher {
    pub(super) fn new(node: Node, id: WatcherId, notify: Arc<Notify>) -> Self {
        Self { node, id, notify }
    }

    /// Says what watches, for people.
    pub fn introduce(&self, about: About) {
        self.node.introduce(self.id, about);
    }

    /// Follows a prefix from where the watcher stands; without a cursor, or with one too old, it gets a snapshot first.
    /// A cursor ahead of the node waits until the node is there. Repeating it starts the subscription anew.
    pub fn subscribe(&self, prefix: Prefix, from: Option<Cursor>) {
        self.node.subscribe(self.id, prefix, from);
    }

    /// Stops to follow a prefix.
    pub fn unsubscribe(&self, prefix: &Prefix) {
        self.node.unsubscribe(self.id, prefix);
    }

    /// Waits until there may be something to pull. Safe to drop: no wake-up is lost.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Takes everything that the watcher has yet to see, as of now; `None` when that is nothing. However much happened
    /// since the last pull, each key comes once. Ages are left at zero.
    pub fn pull(&self) -> Option<Update> {
        self.node.pull(self.id)
    }

    /// Says that everything up to `cursor` is applied: what the watcher decides from now on rests on it.
    pub fn acked(&self, cursor: &Cursor) {
        self.node.acked(self.id, cursor);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.node.leave(self.id);
    }
}
