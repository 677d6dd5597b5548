use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::Identity;
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep, timeout},
};
use tonic::Status;

use super::{FRAME, MAX_REQUEST, SILENCE, frame, framed, pipe::Pipe};
use crate::{
    handshake::{HELLO_TIMEOUT, Hello, plain},
    transport::Socket,
    v1::{self, HelloRequest, WatchRequest, WatchResponse, watch_request::Kind, watch_response},
};

/// How long the last words may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A watch, as the side that is watched has it.
#[derive(Debug)]
pub struct Watched<S = Socket> {
    pipe: Pipe<S>,
    timer: Pin<Box<Sleep>>,
}

impl Watched {
    /// Who watches.
    pub fn identity(&self) -> &Identity {
        self.pipe.socket().identity()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watched<S> {
    /// Takes a connection whose preamble was read, and waits for the greeting. Answer with [`Watched::greet`].
    ///
    /// # Errors
    /// When it does not greet.
    pub async fn accept(socket: S) -> Result<(Self, HelloRequest), Status> {
        let mut watched = Self { pipe: Pipe::new(socket, MAX_REQUEST), timer: Box::pin(sleep(SILENCE)) };
        let greeting = timeout(HELLO_TIMEOUT, poll_fn(|cx| watched.poll_asked(cx))).await;
        match greeting.map_err(|_| Status::deadline_exceeded("it did not greet"))?? {
            WatchRequest { kind: Some(Kind::Hello(hello)) } => {
                Ok((watched, HelloRequest { software: plain(&hello.software), ..hello }))
            }
            _ => Err(Status::invalid_argument("the first message of a watch is a hello")),
        }
    }

    /// Answers the greeting.
    pub fn greet(&mut self, hello: Hello) {
        self.send(frame(&WatchResponse {
            kind: Some(watch_response::Kind::Hello(hello.into())),
            more: false,
        }));
    }

    /// Sends what [`frame`] made, as [`Watched::poll_sent`] is called.
    pub fn send(&mut self, frame: Bytes) {
        self.pipe.queue(frame);
    }

    /// Sends as much as the system takes; ready once that is everything.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.poll_sent(cx)
    }

    /// What the watcher asks next. To be called again with the same waker until it is pending.
    ///
    /// # Errors
    /// When the watcher is gone, or sends what cannot be read.
    pub fn poll_asked(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchRequest, Status>> {
        loop {
            match self.pipe.poll_frame(cx) {
                Poll::Ready(Ok(Some(frame))) => {
                    if !frame.is_empty() {
                        return Poll::Ready(WatchRequest::decode(frame).map_err(|error| {
                            Status::invalid_argument(format!("a request that cannot be read: {error}"))
                        }));
                    }
                    // Whatever else is on its way says as well that this side is there.
                    if self.pipe.is_empty() {
                        self.pipe.queue(framed(&()));
                    }
                }
                Poll::Ready(Ok(None)) => return Poll::Ready(Err(gone("the watcher hung up"))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(gone(&error.to_string()))),
                Poll::Pending => {
                    if self.timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let (silent, now) = (self.pipe.heard() + SILENCE, Instant::now());
                    if silent <= now {
                        return Poll::Ready(Err(gone("the watcher is silent")));
                    }
                    let late = self.pipe.partial().map(|began| began + FRAME);
                    if late.is_some_and(|late| late <= now) {
                        let why = format!("a request did not come within {FRAME:?}");
                        return Poll::Ready(Err(Status::deadline_exceeded(why)));
                    }
                    self.timer.as_mut().reset(late.map_or(silent, |late| late.min(silent)));
                }
            }
        }
    }

    /// Ends the watch and says why, as far as the watcher listens.
    pub async fn end(mut self, why: &Status) {
        let ended = v1::Ended {
            code: u32::try_from(i32::from(why.code())).unwrap_or(2),
            reason: why.message().into(),
        };
        self.send(frame(&WatchResponse { kind: Some(watch_response::Kind::Ended(ended)), more: false }));
        let _ = timeout(LAST_WORDS, poll_fn(|cx| self.pipe.poll_sent(cx))).await;
    }
}

fn gone(why: &str) -> Status {
    Status::cancelled(why)
}
