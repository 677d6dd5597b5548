use std::{
    future::poll_fn,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use fairmesh_model::{Cursor, Prefix};

use super::Node;
use crate::{PeerInfo, PendingUpdate, Update, watcher_hub::WatcherId};

/// Wakes one watcher without the node's lock.
#[derive(Debug, Default)]
pub(super) struct WatcherWaker {
    woken: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Revision up to which the watcher should acknowledge at once.
    requested_ack: AtomicU64,
}

impl WatcherWaker {
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        let waker = mem::take(&mut *self.registered());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Replaces the waker of the polling task.
    fn register(&self, waker: &Waker) {
        let mut registered = self.registered();
        match &mut *registered {
            Some(kept) => kept.clone_from(waker),
            None => *registered = Some(waker.clone()),
        }
    }

    fn registered(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn request_ack(&self, number: u64) {
        if self.requested_ack.fetch_max(number, Ordering::AcqRel) < number {
            self.wake();
        }
    }

    /// Forgets the requested revision, because revision numbers start again.
    pub(super) fn reset(&self) {
        self.requested_ack.store(0, Ordering::Release);
    }
}

/// One watcher of a [`Node`]. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    node: Node,
    id: WatcherId,
    waker: Arc<WatcherWaker>,
}

impl Watcher {
    pub(super) fn new(node: Node, id: WatcherId, waker: Arc<WatcherWaker>) -> Self {
        Self { node, id, waker }
    }

    /// Sets the watcher's kind, region and addresses, which are shown to operators.
    pub fn set_peer_info(&self, info: PeerInfo) {
        self.node.set_peer_info(self.id, info);
    }

    /// Makes the node send patches from now on. The watcher must store values as sent.
    pub fn enable_patches(&self) {
        self.node.enable_patches(self.id);
    }

    /// Follows a prefix from the watcher's cursor. Without a cursor, or with one that is too old, the watcher gets a
    /// snapshot first. With a cursor ahead of the node, the subscription waits until the node has caught up. A
    /// repeated call restarts the subscription.
    pub fn subscribe(&self, prefix: Prefix, from: Option<Cursor>) {
        self.node.subscribe(self.id, prefix, from);
    }

    /// Whether the watcher waits for the node, because its copies were newer than the node at the last pull.
    pub fn is_ahead(&self) -> bool {
        self.node.is_ahead(self.id)
    }

    /// Stops following a prefix.
    pub fn unsubscribe(&self, prefix: &Prefix) {
        self.node.unsubscribe(self.id, prefix);
    }

    /// Waits until changes may be pending. Cancel safe: no wake-up is lost.
    pub async fn woken(&self) {
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    /// Polls for a wake-up. Only the most recent waker is woken.
    pub fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Usually the watcher is woken already, and no waker is needed.
        if self.waker.woken.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        match self.waker.woken.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Returns the revision up to which acknowledgements are requested, here or downstream; 0 if none is requested.
    /// Call this after a pull, so that no revision is requested before it was sent.
    pub fn ack_requested(&self) -> u64 {
        self.waker.requested_ack.load(Ordering::Acquire)
    }

    /// Takes all pending changes; `None` if there are none. Each key occurs once, however often it changed. Takes at
    /// most a part of the new subscriptions, and wakes the watcher for the rest. Ages are left at zero.
    pub fn pull(&self) -> Option<Update> {
        self.pull_with_bases().map(|pulled| pulled.update)
    }

    /// Like [`Watcher::pull`], with the bases of patches if patches are [enabled](Watcher::enable_patches).
    pub fn pull_with_bases(&self) -> Option<PendingUpdate> {
        self.node.pull(self.id)
    }

    /// Acknowledges all revisions up to `cursor`: the watcher's decisions use them from now on.
    pub fn ack(&self, cursor: &Cursor) {
        self.node.ack(self.id, cursor);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.node.leave(self.id);
    }
}
