use std::future::pending;

use tokio::{sync::watch, time::Instant};

/// The writer lease of the store: only its holder writes.
///
/// The store checks the lease with each write, so that no write of an expired holder is committed. The runtime checks it
/// earlier and then decides again: without the lease another control plane may have written, and the facts may be outdated.
#[derive(Clone, Debug)]
pub(crate) struct Fence(Option<watch::Receiver<Instant>>);

impl Fence {
    /// `expiry` is when another process may write; `None` if none ever can.
    pub(crate) fn new(expiry: Option<watch::Receiver<Instant>>) -> Self {
        Self(expiry)
    }

    /// Whether no other process can have written.
    pub(crate) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(|expiry| Instant::now() < *expiry.borrow())
    }

    /// Waits until the lease is held.
    pub(crate) async fn wait_held(&mut self) {
        let Some(expiry) = &mut self.0 else { return };
        if expiry.wait_for(|expiry| Instant::now() < *expiry).await.is_err() {
            // The store is closed: nothing can be written any more.
            pending().await
        }
    }
}
