//! Upgraded connections: another protocol, or a tunnel, after a response.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot::{self, Receiver, Sender},
};

/// A connection over any transport.
pub(crate) trait UpgradedStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> UpgradedStream for S {}

impl fmt::Debug for dyn UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpgradedStream")
    }
}

/// Request extension of a request that may be upgraded. Resolves to the connection once the response is sent.
/// Shared by clones, since extensions must be `Clone` and connections are not.
#[derive(Clone, Debug)]
pub(crate) struct OnUpgrade(Arc<Mutex<Option<UpgradeReceiver>>>);

type UpgradeReceiver = Receiver<Box<dyn UpgradedStream>>;

/// Delivers the upgraded connection to [`OnUpgrade`]. Dropping it means that the connection was not upgraded.
#[derive(Debug)]
pub(crate) struct PendingUpgrade(Sender<Box<dyn UpgradedStream>>);

impl OnUpgrade {
    /// Inserts the receiving side into the extensions of a request.
    pub(crate) fn offer(extensions: &mut Extensions) -> PendingUpgrade {
        let (pending_upgrade, receiver) = oneshot::channel();
        extensions.insert(Self(Arc::new(Mutex::new(Some(receiver)))));
        PendingUpgrade(pending_upgrade)
    }

    /// Waits for the connection. `None` if the connection was not upgraded, or if another clone received it.
    pub(crate) async fn upgraded(self) -> Option<Box<dyn UpgradedStream>> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        receiver.await.ok()
    }
}

impl PendingUpgrade {
    /// Hands over the connection. It is closed if the receiver is gone.
    pub(crate) fn fulfill(self, stream: impl UpgradedStream + 'static) {
        let _ = self.0.send(Box::new(stream));
    }
}
