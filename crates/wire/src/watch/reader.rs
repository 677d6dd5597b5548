use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep, timeout},
};
use tonic::{Code, Status};

use super::{PREAMBLE, PROBE, framed, pipe::Pipe};
use crate::{
    handshake::{ConnectError, HELLO_TIMEOUT, Hello, PROTOCOL},
    rpc::MAX_MESSAGE,
    transport::{Address, CONNECT_TIMEOUT, Plaintext, Socket, Transport},
    v1::{HelloRequest, WatchRequest, WatchResponse, watch_request, watch_response::Kind},
};

/// A watch, as the side that watches has it. Dropping it ends the watch.
pub struct Watch<S = Socket> {
    pipe: Pipe<S>,
    hello: Hello,
    /// When the other side was last asked whether it is there.
    asked: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Watch {
    /// Connects and agrees on a version, as [`handshake::connect`](crate::handshake::connect) does.
    ///
    /// # Errors
    /// When nobody is there, or nobody who speaks a version of this side.
    pub async fn open(address: &Address, software: &str) -> Result<Self, ConnectError> {
        let dialled = timeout(CONNECT_TIMEOUT, Plaintext.dial(address)).await;
        let socket = dialled.unwrap_or_else(|late| Err(late.into()));
        let socket = socket.map_err(|source| ConnectError::unreachable(address, source))?;
        Self::over(socket, address, software).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watch<S> {
    /// Agrees on a version over a connection to `address`.
    ///
    /// # Errors
    /// When nobody answers there who speaks a version of this side.
    pub async fn over(socket: S, address: &Address, software: &str) -> Result<Self, ConnectError> {
        let hello = HelloRequest {
            oldest_version: *PROTOCOL.start(),
            newest_version: *PROTOCOL.end(),
            software: software.to_owned(),
        };
        let mut pipe = Pipe::new(socket, MAX_MESSAGE);
        pipe.queue(Bytes::from_static(&PREAMBLE));
        pipe.queue(framed(&WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) }));
        let unheard = Hello { version: 0, store: None, location: None, software: String::new() };
        let mut watch = Self { pipe, hello: unheard, asked: None, timer: Box::pin(sleep(PROBE.0)) };
        let no_hello =
            |status: Status| ConnectError::NoHello { address: address.clone(), status: Box::new(status) };
        let answer = match timeout(HELLO_TIMEOUT, watch.next()).await {
            Err(_) => return Err(no_hello(Status::deadline_exceeded("it did not answer"))),
            Ok(Err(status)) if status.code() == Code::FailedPrecondition => {
                return Err(ConnectError::Version {
                    address: address.clone(),
                    reason: status.message().to_owned(),
                });
            }
            Ok(answer) => answer.map_err(no_hello)?,
        };
        let Some(Kind::Hello(hello)) = answer.kind else {
            return Err(no_hello(Status::internal("its first message is no hello")));
        };
        watch.hello = Hello::spoken(hello, address)?;
        Ok(watch)
    }

    /// What the other side said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sends a request with the next call of [`Watch::next`].
    pub fn send(&mut self, request: &WatchRequest) {
        self.pipe.queue(framed(request));
    }

    /// Sends what there is to send and waits for the next answer. Safe to drop and to call again.
    ///
    /// # Errors
    /// Why the watch has ended: what the other side says, or that it is gone.
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchResponse, Status>> {
        loop {
            if let Poll::Ready(Err(error)) = self.pipe.poll_sent(cx) {
                return Poll::Ready(Err(broken(&error)));
            }
            match self.pipe.poll_frame(cx) {
                Poll::Ready(Ok(Some(frame))) if frame.is_empty() => {}
                Poll::Ready(Ok(Some(frame))) => return Poll::Ready(read(frame)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Err(Status::unavailable("it ended the watch"))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&error))),
                Poll::Pending => {
                    if self.timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.probe()?;
                }
            }
        }
    }

    /// The timer went off.
    fn probe(&mut self) -> Result<(), Status> {
        let ((quiet, patience), heard, now) = (PROBE, self.pipe.heard(), Instant::now());
        let due = if now < heard + quiet {
            heard + quiet
        } else if self.asked.is_some_and(|asked| asked > heard) {
            return Err(Status::unavailable(format!("it said nothing for {:?}", quiet + patience)));
        } else {
            self.asked = Some(now);
            self.pipe.queue(framed(&()));
            now + patience
        };
        self.timer.as_mut().reset(due);
        Ok(())
    }
}

impl<S> fmt::Debug for Watch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("hello", &self.hello).finish_non_exhaustive()
    }
}

fn read(frame: Bytes) -> Result<WatchResponse, Status> {
    let message = WatchResponse::decode(frame)
        .map_err(|error| Status::internal(format!("it sent what cannot be read: {error}")))?;
    match message.kind {
        Some(Kind::Ended(ended)) => {
            Err(Status::new(Code::from(i32::try_from(ended.code).unwrap_or_default()), ended.reason))
        }
        _ => Ok(message),
    }
}

fn broken(error: &std::io::Error) -> Status {
    Status::unavailable(format!("the connection broke: {error}"))
}
