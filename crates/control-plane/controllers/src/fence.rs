use std::future::pending;

use tokio::{sync::watch, time::Instant};

/// The writer lease of the store: only its holder may write.
///
/// The store checks the lease with each write, so no write of an expired holder is committed. The runtime
/// checks it earlier and waits: without the lease, another control plane may have written, and the facts may
/// be outdated.
#[derive(Clone, Debug)]
pub(crate) struct Fence(Option<watch::Receiver<Instant>>);

impl Fence {
    /// Creates a fence. `expiry` is the time from which another process may write; `None` if no other process ever
    /// can.
    pub(crate) fn new(expiry: Option<watch::Receiver<Instant>>) -> Self {
        Self(expiry)
    }

    /// Whether the lease is held, so that no other process can have written.
    pub(crate) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(|expiry| Instant::now() < *expiry.borrow())
    }

    /// Waits until the lease is held.
    pub(crate) async fn wait_held(&mut self) {
        let Some(expiry) = &mut self.0 else { return };
        if expiry.wait_for(|expiry| Instant::now() < *expiry).await.is_err() {
            // The store is closed, so nothing can be written any more.
            pending().await
        }
    }
}
