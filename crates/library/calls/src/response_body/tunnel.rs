use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BytesMut};
use fairmesh_router::EndpointTarget;
use fairmesh_wire::transport::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::attempt_guard::AttemptGuard;
use crate::{observe::OpenConnection, transport::RawConnection};

/// A connection to a server for any protocol: after an upgrade, or for a protocol other than HTTP.
///
/// Until it is dropped it counts as a stream at its endpoint, which is another kind of load than a call (Uber, assisted
/// balancing).
pub struct Tunnel {
    io: Stream,
    /// Bytes that the server sent along with its response.
    input: BytesMut,
    attempt: AttemptGuard,
    _open: Option<OpenConnection>,
}

impl Tunnel {
    pub(crate) fn new(connection: RawConnection, attempt: AttemptGuard) -> Self {
        let RawConnection { io, input, open } = connection;
        Self { io, input, attempt: attempt.into_stream(), _open: open }
    }

    /// The endpoint that it leads to.
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
        if self.input.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let size = self.input.len().min(buffer.remaining());
        buffer.put_slice(&self.input[..size]);
        self.input.advance(size);
        if self.input.is_empty() {
            // A tunnel may be open for days.
            self.input = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    /// Shuts down the writing side; the server's bytes can still be read.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("endpoint", &self.endpoint().instance).finish_non_exhaustive()
    }
}
