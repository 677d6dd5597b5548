//! Connections to where captured programs meant to go.

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

/// How long connecting may take. Its program believes that it is connected, and no bound of its own counts any more.
const CONNECT: Duration = Duration::from_secs(10);

/// Makes them, and knows them again where rules that redirect everybody bring them back here. Their number is bounded by that
/// of the programs' connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Onward(Arc<Mutex<HashSet<SocketAddr>>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Passage {
    stream: TcpStream,
    from: Option<SocketAddr>,
    all: Onward,
}

impl Onward {
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<Passage> {
        let stream = timeout(CONNECT, TcpStream::connect(to)).await??;
        // Fails only on a socket that is already broken, which the first read will say better.
        let _ = stream.set_nodelay(true);
        let from = stream.local_addr().ok();
        self.ours().extend(from);
        Ok(Passage { stream, from, all: self.clone() })
    }

    /// Whether who connected is this proxy.
    pub(crate) fn made(&self, caller: SocketAddr) -> bool {
        self.ours().contains(&caller)
    }

    fn ours(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Passage {
    /// Waits until the server has said something, or ended.
    pub(crate) async fn speaks(&self) -> io::Result<()> {
        self.stream.peek(&mut [0]).await.map(drop)
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if let Some(from) = &self.from {
            self.all.ours().remove(from);
        }
    }
}

impl AsyncRead for Passage {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Passage {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn connections_of_its_own_are_known_for_as_long_as_they_are_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let onward = Onward::default();
        let passage = onward.connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, caller) = listener.accept().await.unwrap();
        assert!(onward.made(caller));
        drop(passage);
        assert!(!onward.made(caller));
    }
}
