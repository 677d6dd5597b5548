//! CONNECT tunnels: byte streams without messages (RFC 9113 8.5).

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::Request;
use http_body::Body as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

use super::{Reason, RequestBody, Responder};

/// Maximum size of one write, in bytes.
const MAX_WRITE: usize = 16 * 1024;

/// An extension of CONNECT requests. It becomes the tunnel once a 2xx response is sent.
#[derive(Clone, Debug)]
pub struct PendingTunnel(Arc<Mutex<Option<PendingParts>>>);

/// A tunnel whose CONNECT request has no response yet.
#[derive(Debug)]
struct PendingParts {
    body: RequestBody,
    begun: oneshot::Receiver<Responder>,
}

/// Passes the responder to a [`PendingTunnel`].
#[derive(Debug)]
pub(super) struct TunnelStart(oneshot::Sender<Responder>);

/// Both directions of a stream.
#[derive(Debug)]
pub struct TunnelStream {
    body: RequestBody,
    responder: Responder,
    /// Received bytes that are not yet read.
    received: Bytes,
    /// Bytes accepted from the writer that are not yet sent.
    accepted: Bytes,
}

impl PendingTunnel {
    /// Takes the body out of a CONNECT request: its bytes belong to the tunnel.
    pub(super) fn begin(request: &mut Request<RequestBody>) -> TunnelStart {
        let body = std::mem::replace(request.body_mut(), RequestBody::absent());
        let (begins, begun) = oneshot::channel();
        request.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(PendingParts { body, begun })))));
        TunnelStart(begins)
    }

    /// Waits for the 2xx response. Returns `None` if the tunnel is refused or was already taken.
    pub async fn begun(self) -> Option<TunnelStream> {
        let PendingParts { body, begun } = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let responder = begun.await.ok()?;
        Some(TunnelStream { body, responder, received: Bytes::new(), accepted: Bytes::new() })
    }
}

impl TunnelStart {
    /// Whether the pending tunnel is still awaited.
    pub(super) fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }

    pub(super) fn begin(self, responder: Responder) {
        // If the receiver was dropped, dropping the responder resets the stream.
        let _ = self.0.send(responder);
    }
}

fn reset_error(error: impl Into<crate::BoxError>) -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, error)
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.received.is_empty() {
            let frame =
                ready!(Pin::new(&mut this.body).poll_frame(context)).transpose().map_err(reset_error)?;
            let Some(Ok(data)) = frame.map(|frame| frame.into_data()) else { return Poll::Ready(Ok(())) };
            this.received = data;
        }
        let size = this.received.len().min(buffer.remaining());
        buffer.put_slice(&this.received[..size]);
        this.received.advance(size);
        Poll::Ready(Ok(()))
    }
}

impl TunnelStream {
    fn poll_send_accepted(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.accepted.is_empty() {
            true => Poll::Ready(Ok(())),
            false => self.responder.poll_send_data(&mut self.accepted, false, context).map_err(reset_error),
        }
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_send_accepted(context))?;
        let size = data.len().min(MAX_WRITE);
        this.accepted = Bytes::copy_from_slice(&data[..size]);
        // Bytes that flow control did not allow yet are sent before the next write.
        if let Poll::Ready(Err(error)) = this.poll_send_accepted(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send_accepted(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send_accepted(context))?;
        this.responder.poll_send_data(&mut Bytes::new(), true, context).map_err(reset_error)
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        // Has no effect if both sides have sent END_STREAM.
        self.responder.reset(Reason::CANCEL);
    }
}
