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
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl fmt::Debug for dyn Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// In the extensions of a request that asks for this: what its connection becomes once that is answered. Extensions are to be
/// cloned, and a connection cannot be.
#[derive(Clone, Debug)]
pub(crate) struct Switch(Arc<Mutex<Option<Begun>>>);

type Begun = Receiver<Box<dyn Stream>>;

/// The other end of it. Dropped, it says that the connection goes on as it was, or has ended.
#[derive(Debug)]
pub(crate) struct Begins(Sender<Box<dyn Stream>>);

impl Switch {
    /// Puts one into the extensions of a request.
    pub(super) fn offer(extensions: &mut Extensions) -> Begins {
        let (begins, begun) = oneshot::channel();
        extensions.insert(Self(Arc::new(Mutex::new(Some(begun)))));
        Begins(begins)
    }

    /// Waits until the program was told; `None` where it was told something else, or somebody else took the connection.
    pub(crate) async fn begun(self) -> Option<Box<dyn Stream>> {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        begun.await.ok()
    }
}

impl Begins {
    /// Hands the connection over to whoever waits for it; else it ends.
    pub(crate) fn begin(self, stream: impl Stream + 'static) {
        let _ = self.0.send(Box::new(stream));
    }
}
