//! The original destination of a connection, and connections to original destinations.

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

/// Time limit for connecting. The client's own time limit does not apply, since the client is already connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The original destination of a captured connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: SocketAddr,
    /// Whether only calls to services are allowed.
    pub(crate) only_services: bool,
}

/// Opens connections to original destinations, and recognizes them if redirection rules bring them back to this
/// proxy. It remembers at most as many connections as are captured.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassthroughConnector(Arc<Mutex<HashSet<SocketAddr>>>);

/// A connection to an original destination.
#[derive(Debug)]
pub(crate) struct PassthroughConnection {
    stream: TcpStream,
    from: Option<SocketAddr>,
    all: PassthroughConnector,
}

impl PassthroughConnector {
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<PassthroughConnection> {
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await??;
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        let from = stream.local_addr().ok();
        self.addresses().extend(from);
        Ok(PassthroughConnection { stream, from, all: self.clone() })
    }

    /// Whether `caller` is the local address of a connection that this connector opened.
    pub(crate) fn is_own(&self, caller: SocketAddr) -> bool {
        self.addresses().contains(&caller)
    }

    fn addresses(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PassthroughConnection {
    /// Waits until the server has sent data or closed.
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
    async fn proxy_recognizes_its_own_open_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = PassthroughConnector::default();
        let server = connector.connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, caller) = listener.accept().await.unwrap();
        assert!(connector.is_own(caller));
        drop(server);
        assert!(!connector.is_own(caller));
    }
}
