//! Connections that carry something else than messages after an answer: another protocol, or a tunnel.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot::{self, Receiver, Sender},
};

/// A connection, whatever carries it.
pub(crate) trait UpgradedStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> UpgradedStream for S {}

impl fmt::Debug for dyn UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpgradedStream")
    }
}

/// In the extensions of a request that asks for this: what its connection becomes once that is answered. Extensions are to be
/// cloned, and a connection cannot be.
#[derive(Clone, Debug)]
pub(crate) struct OnUpgrade(Arc<Mutex<Option<UpgradeReceiver>>>);

type UpgradeReceiver = Receiver<Box<dyn UpgradedStream>>;

/// The other end of it. Dropped, it says that the connection goes on as it was, or has ended.
#[derive(Debug)]
pub(crate) struct PendingUpgrade(Sender<Box<dyn UpgradedStream>>);

impl OnUpgrade {
    /// Puts one into the extensions of a request.
    pub(crate) fn offer(extensions: &mut Extensions) -> PendingUpgrade {
        let (pending_upgrade, receiver) = oneshot::channel();
        extensions.insert(Self(Arc::new(Mutex::new(Some(receiver)))));
        PendingUpgrade(pending_upgrade)
    }

    /// Waits until the program was told; `None` where it was told something else, or somebody else took the connection.
    pub(crate) async fn upgraded(self) -> Option<Box<dyn UpgradedStream>> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        receiver.await.ok()
    }
}

impl PendingUpgrade {
    /// Hands the connection over to whoever waits for it; else it ends.
    pub(crate) fn fulfill(self, stream: impl UpgradedStream + 'static) {
        let _ = self.0.send(Box::new(stream));
    }
}
