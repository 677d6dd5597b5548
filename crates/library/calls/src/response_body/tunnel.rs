use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_connections::RawConnection;
use fairmesh_router::EndpointTarget;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::attempt_guard::AttemptGuard;

/// A connection to a server for any protocol: after an upgrade, or for a protocol other than HTTP.
///
/// Until the tunnel is dropped it counts as a stream at its endpoint, which is a different kind of load than a call
/// (Uber, assisted balancing).
pub struct Tunnel {
    /// The connection, with bytes that the server sent together with its response.
    connection: RawConnection,
    attempt: AttemptGuard,
}

impl Tunnel {
    pub(crate) fn new(connection: RawConnection, attempt: AttemptGuard) -> Self {
        Self { connection, attempt: attempt.into_stream() }
    }

    /// The endpoint to which the tunnel leads.
    pub fn endpoint(&self) -> &EndpointTarget {
        self.attempt.pool().target()
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    /// Shuts down the writing side; the server's bytes can still be read.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("endpoint", &self.endpoint().instance).finish_non_exhaustive()
    }
}
