use std::future::pending;

use tokio::{sync::watch, time::Instant};

/// The writer lease of the store: only the control plane that holds it writes.
///
/// The store checks the lease with each write, so that no write of an expired holder is ever committed. The runtime checks it
/// before, and then decides anew: without the lease, another control plane may have written, and the facts may be old.
#[derive(Clone, Debug)]
pub(crate) struct Fence(Option<watch::Receiver<Instant>>);

impl Fence {
    /// `expiry`: until when no other process can write; `None` if none ever can.
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
