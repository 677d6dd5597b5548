use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_listen::Connection;
use fairmesh_model::Identity;
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};
use tonic::Status;

use super::{
    FRAME_TIMEOUT, MAX_REQUEST, PEER_TIMEOUT, WRITE_TIMEOUT, encode_frame, frame, framed_socket::FramedSocket,
};
use crate::{
    handshake::{HELLO_TIMEOUT, Hello, sanitize},
    transport::Socket,
    v1::{self, HelloRequest, WatchRequest, WatchResponse, watch_request::Kind, watch_response},
};

/// Timeout for sending the final status.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The server side of a watch.
#[derive(Debug)]
pub struct WatchServer<S = Socket> {
    framed: FramedSocket<S>,
    timer: Pin<Box<Sleep>>,
    /// Wakes the task when a blocked write times out; `None` while no write is blocked.
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl WatchServer {
    /// The identity of the watcher.
    pub fn identity(&self) -> &Identity {
        self.framed.socket().identity()
    }

    /// Set if the peer has sent no certificate on a secured connection.
    #[cfg(feature = "server")]
    pub fn without_certificate(&self) -> Option<crate::transport::WithoutCertificate> {
        self.framed.socket().without_certificate()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WatchServer<S> {
    /// Accepts a connection whose preamble was read, and waits for the hello. Respond to it with
    /// [`WatchServer::send_hello`]. Large requests claim memory from the listener of `connection`.
    ///
    /// # Errors
    /// If there is no hello.
    pub async fn accept(
        socket: S,
        connection: Option<Arc<Connection>>,
    ) -> Result<(Self, HelloRequest), Status> {
        let framed = FramedSocket::new(socket, MAX_REQUEST, connection);
        let timer = Box::pin(sleep(PEER_TIMEOUT));
        let mut watched = Self { framed, timer, write_timer: None };
        let greeting = timeout(HELLO_TIMEOUT, poll_fn(|cx| watched.poll_request(cx))).await;
        match greeting.map_err(|_| Status::deadline_exceeded("it did not send a hello"))?? {
            WatchRequest { kind: Some(Kind::Hello(hello)) } => {
                Ok((watched, HelloRequest { software: sanitize(&hello.software), ..hello }))
            }
            _ => Err(Status::invalid_argument("the first message of a watch must be a hello")),
        }
    }

    /// Responds to the hello.
    pub fn send_hello(&mut self, hello: Hello) {
        self.send(frame(&WatchResponse {
            kind: Some(watch_response::Kind::Hello(hello.into())),
            more: false,
        }));
    }

    /// Queues an encoded [`frame`], which [`WatchServer::poll_flush`] sends.
    pub fn send(&mut self, frame: Bytes) {
        self.framed.queue(frame);
    }

    /// Writes as much as possible; ready once everything is written.
    ///
    /// # Errors
    /// If the connection is lost, or has accepted nothing for 30 s.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if let Poll::Ready(flushed) = self.framed.poll_flush(cx) {
            self.write_timer = None;
            return Poll::Ready(flushed.map_err(|error| gone(&error.to_string())));
        }
        let Some(blocked) = self.framed.blocked_since() else { return Poll::Pending };
        let due = blocked + WRITE_TIMEOUT;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        // The clock is checked too: after a task used up its cooperative budget by reading, its timers stay pending.
        if timer.as_mut().poll(cx).is_pending() && Instant::now() < due {
            return Poll::Pending;
        }
        let why = format!("the watcher read nothing for {WRITE_TIMEOUT:?}");
        Poll::Ready(Err(Status::deadline_exceeded(why)))
    }

    /// Polls for the next request of the watcher. Must be called again with the same waker until it is pending.
    ///
    /// # Errors
    /// If the connection is lost, or a request is invalid.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchRequest, Status>> {
        loop {
            match self.framed.poll_frame(cx) {
                Poll::Ready(Ok(Some(frame))) => {
                    if !frame.is_empty() {
                        return Poll::Ready(WatchRequest::decode(frame).map_err(|error| {
                            Status::invalid_argument(format!("an invalid request: {error}"))
                        }));
                    }
                    // Any other queued frame also shows that the server is alive.
                    if self.framed.is_empty() {
                        self.framed.queue(encode_frame(&()));
                    }
                }
                Poll::Ready(Ok(None)) => return Poll::Ready(Err(gone("the watcher closed the connection"))),
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    return Poll::Ready(Err(Status::invalid_argument(error.to_string())));
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return Poll::Ready(Err(Status::resource_exhausted(error.to_string())));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(gone(&error.to_string()))),
                Poll::Pending => {
                    if self.timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let (silent, now) = (self.framed.last_received() + PEER_TIMEOUT, Instant::now());
                    if silent <= now {
                        return Poll::Ready(Err(Status::deadline_exceeded(
                            "the watcher sent nothing in time",
                        )));
                    }
                    let late = self.framed.partial_since().map(|began| began + FRAME_TIMEOUT);
                    if late.is_some_and(|late| late <= now) {
                        let why = format!("a request was not complete within {FRAME_TIMEOUT:?}");
                        return Poll::Ready(Err(Status::deadline_exceeded(why)));
                    }
                    self.timer.as_mut().reset(late.map_or(silent, |late| late.min(silent)));
                }
            }
        }
    }

    /// Ends the watch with a status, which is sent if the watcher still reads.
    pub async fn end(mut self, why: &Status) {
        let ended = v1::Ended {
            code: u32::try_from(i32::from(why.code())).unwrap_or(2),
            reason: why.message().into(),
        };
        self.send(frame(&WatchResponse { kind: Some(watch_response::Kind::Ended(ended)), more: false }));
        let _ = timeout(END_TIMEOUT, poll_fn(|cx| self.framed.poll_flush(cx))).await;
    }
}

fn gone(why: &str) -> Status {
    Status::cancelled(why)
}
