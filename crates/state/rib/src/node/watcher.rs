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
use crate::{PeerInfo, PendingUpdate, Update, hub::WatcherId};

/// Wakes one watcher, outside of its node's lock.
#[derive(Debug, Default)]
pub(super) struct WatcherWaker {
    woken: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// The number up to which the watcher should acknowledge at once.
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

    /// Forgets everything, because revision numbers start again.
    pub(super) fn reset(&self) {
        self.requested_ack.store(0, Ordering::Release);
    }
}

/// One watcher of a [`Node`]; dropping it ends the watch.
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

    /// Sets its kind, region and addresses, for operators.
    pub fn set_peer_info(&self, info: PeerInfo) {
        self.node.set_peer_info(self.id, info);
    }

    /// Sends patches from now on; the watcher must store values as sent.
    pub fn enable_patches(&self) {
        self.node.enable_patches(self.id);
    }

    /// Follows a prefix from the watcher's cursor. Without one, or with one too old, the watcher gets a snapshot first.
    /// A cursor ahead of the node waits until the node has caught up. A repeated call restarts the subscription.
    pub fn subscribe(&self, prefix: Prefix, from: Option<Cursor>) {
        self.node.subscribe(self.id, prefix, from);
    }

    /// Whether the watcher had later copies than the node at the last pull, and waits for the node.
    pub fn is_ahead(&self) -> bool {
        self.node.is_ahead(self.id)
    }

    /// Stops following a prefix.
    pub fn unsubscribe(&self, prefix: &Prefix) {
        self.node.unsubscribe(self.id, prefix);
    }

    /// Waits until something may be pending. Safe to drop: no wake-up is lost.
    pub async fn woken(&self) {
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    /// Polls for a wake-up. Only the last given waker is woken.
    pub fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Usually the watcher is woken already and needs no waker.
        if self.waker.woken.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        match self.waker.woken.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// The number up to which acknowledgements are requested, here or downstream; 0 without a request. Read it after a
    /// pull, so that no unsent revision is requested.
    pub fn ack_requested(&self) -> u64 {
        self.waker.requested_ack.load(Ordering::Acquire)
    }

    /// Takes every pending change; `None` without any. Each key comes once, however often it changed. At most a part
    /// of the new subscriptions is taken, and the watcher is woken for the rest. Ages are left at zero.
    pub fn pull(&self) -> Option<Update> {
        self.pull_with_bases().map(|pulled| pulled.update)
    }

    /// Pulls with the bases of patches if they are [enabled](Watcher::enable_patches).
    pub fn pull_with_bases(&self) -> Option<PendingUpdate> {
        self.node.pull(self.id)
    }

    /// Acknowledges everything up to `cursor`: the watcher's decisions use it from now on.
    pub fn ack(&self, cursor: &Cursor) {
        self.node.ack(self.id, cursor);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.node.leave(self.id);
    }
}
