use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use fairmesh_model::{Cursor, Prefix};
use futures_util::task::AtomicWaker;

use super::Node;
use crate::{About, Pulled, Update, hub::WatcherId};

/// How a node reaches one watcher outside of its lock.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    waker: AtomicWaker,
    /// The number up to which the watcher should acknowledge at once.
    hurry: AtomicU64,
}

impl Bell {
    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn hurry(&self, number: u64) {
        if self.hurry.fetch_max(number, Ordering::AcqRel) < number {
            self.ring();
        }
    }

    /// The numbers of the table start anew.
    pub(super) fn reset(&self) {
        self.hurry.store(0, Ordering::Release);
    }
}

/// One watcher of a [`Node`]; dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    node: Node,
    id: WatcherId,
    bell: Arc<Bell>,
}

impl Watcher {
    pub(super) fn new(node: Node, id: WatcherId, bell: Arc<Bell>) -> Self {
        Self { node, id, bell }
    }

    /// Says what watches, for people.
    pub fn introduce(&self, about: About) {
        self.node.introduce(self.id, about);
    }

    /// Is told from now on what differs from what it was sent: it can look that up.
    pub fn take_patches(&self) {
        self.node.take_patches(self.id);
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
        poll_fn(|cx| self.poll_woken(cx)).await;
    }

    /// The same for who waits for more than this. Only the last waker given is woken.
    pub fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Most who look have been woken, and need not leave word.
        if self.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.bell.waker.register(cx.waker());
        match self.bell.rung.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// The number up to which somebody waits for acknowledgements, and so should whoever watches be asked to; 0 where nobody
    /// does. To be looked at after a pull, so that nobody is asked for what was not sent.
    pub fn hurried(&self) -> u64 {
        self.bell.hurry.load(Ordering::Acquire)
    }

    /// Takes everything that the watcher has yet to see, as of now; `None` when that is nothing. However much happened
    /// since the last pull, each key comes once. Of many new subscriptions it takes some, and the watcher is woken for the
    /// others. Ages are left at zero.
    pub fn pull(&self) -> Option<Update> {
        self.pull_held().map(|pulled| pulled.update)
    }

    /// The same with what the watcher holds of it, where it [takes patches](Watcher::take_patches).
    pub fn pull_held(&self) -> Option<Pulled> {
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
