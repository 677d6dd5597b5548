use std::sync::Arc;

use tokio::sync::watch;

/// An immutable value that one controller replaces and others read. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Published<T>(Arc<watch::Sender<Arc<T>>>);

impl<T: Default> Default for Published<T> {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl<T> Published<T> {
    /// The value at present.
    pub(super) fn read(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow())
    }

    /// Receives the present value and later ones.
    pub(super) fn follow(&self) -> watch::Receiver<Arc<T>> {
        self.0.subscribe()
    }

    /// Replaces the value.
    pub(super) fn publish(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }
}
