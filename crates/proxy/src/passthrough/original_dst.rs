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
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes them, and knows them again where rules that redirect everybody bring them back here. Their number is bounded by that
/// of the programs' connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassthroughConnector(Arc<Mutex<HashSet<SocketAddr>>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct PassthroughConnection {
    stream: TcpStream,
    from: Option<SocketAddr>,
    all: PassthroughConnector,
}

impl PassthroughConnector {
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<PassthroughConnection> {
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await??;
        // Fails only on a socket that is already broken, which the first read will say better.
        let _ = stream.set_nodelay(true);
        let from = stream.local_addr().ok();
        self.addresses().extend(from);
        Ok(PassthroughConnection { stream, from, all: self.clone() })
    }

    /// Whether who connected is this proxy.
    pub(crate) fn is_own(&self, caller: SocketAddr) -> bool {
        self.addresses().contains(&caller)
    }

    fn addresses(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PassthroughConnection {
    /// Waits until the server has said something, or ended.
    pub(crate) async fn wait_readable(&self) -> io::Result<()> {
        self.stream.peek(&mut [0]).await.map(drop)
    }
}

impl Drop for PassthroughConnection {
    fn drop(&mut self) {
        if let Some(from) = &self.from {
            self.all.addresses().remove(from);
        }
    }
}

impl AsyncRead for PassthroughConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PassthroughConnection {
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
    async fn own_connections_are_known_while_they_are_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = PassthroughConnector::default();
        let server = connector.connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, caller) = listener.accept().await.unwrap();
        assert!(connector.is_own(caller));
        drop(server);
        assert!(!connector.is_own(caller));
    }
}
