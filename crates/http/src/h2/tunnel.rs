//! Streams that carry bytes and no messages (RFC 9113 8.5).

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

/// The longest piece that is taken at once.
const PIECE: usize = 16 * 1024;

/// In the extensions of a request for a tunnel: what it becomes once a success is answered.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Mutex<Option<Waiting>>>);

/// A tunnel that its program was not told of.
#[derive(Debug)]
struct Waiting {
    body: RequestBody,
    begun: oneshot::Receiver<Responder>,
}

/// The other end of it.
#[derive(Debug)]
pub(super) struct Begins(oneshot::Sender<Responder>);

/// Both directions of a stream.
#[derive(Debug)]
pub struct Duplex {
    body: RequestBody,
    responder: Responder,
    /// What came and was not read.
    came: Bytes,
    /// What was taken to be said.
    taken: Bytes,
}

impl Switch {
    /// Takes the body out of a request, of which it is none.
    pub(super) fn begin(request: &mut Request<RequestBody>) -> Begins {
        let body = std::mem::replace(request.body_mut(), RequestBody::absent());
        let (begins, begun) = oneshot::channel();
        request.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(Waiting { body, begun })))));
        Begins(begins)
    }

    /// Waits until the program was told that it has its tunnel; `None` where it has none, or somebody else took it.
    pub async fn begun(self) -> Option<Duplex> {
        let Waiting { body, begun } = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let responder = begun.await.ok()?;
        Some(Duplex { body, responder, came: Bytes::new(), taken: Bytes::new() })
    }
}

impl Begins {
    /// Whether somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }

    pub(super) fn begin(self, responder: Responder) {
        // Who no longer wants it has the stream reset.
        let _ = self.0.send(responder);
    }
}

fn broken(error: impl Into<crate::BoxError>) -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, error)
}

impl AsyncRead for Duplex {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.came.is_empty() {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(context)).transpose().map_err(broken)?;
            let Some(Ok(data)) = frame.map(|frame| frame.into_data()) else { return Poll::Ready(Ok(())) };
            this.came = data;
        }
        let size = this.came.len().min(buffer.remaining());
        buffer.put_slice(&this.came[..size]);
        this.came.advance(size);
        Poll::Ready(Ok(()))
    }
}

impl Duplex {
    fn poll_taken(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.taken.is_empty() {
            true => Poll::Ready(Ok(())),
            false => self.responder.poll_data(&mut self.taken, false, context).map_err(broken),
        }
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_taken(context))?;
        let size = data.len().min(PIECE);
        this.taken = Bytes::copy_from_slice(&data[..size]);
        // What there is no room for yet is said before what comes next.
        if let Poll::Ready(Err(error)) = this.poll_taken(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_taken(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_taken(context))?;
        this.responder.poll_data(&mut Bytes::new(), true, context).map_err(broken)
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        // Where both sides have said all it has ended already.
        self.responder.reset(Reason::CANCEL);
    }
}
