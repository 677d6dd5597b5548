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

use super::{KEEP_ALIVE, PREAMBLE, encode_frame, framed_socket::FramedSocket};
use crate::{
    grpc_stubs::MAX_MESSAGE,
    handshake::{ConnectError, HELLO_TIMEOUT, Hello, PROTOCOL},
    transport::{Address, BearerToken, Socket, Transport},
    v1::{HelloRequest, WatchRequest, WatchResponse, watch_request, watch_response::Kind},
};

/// The client side of a watch. Dropping it ends the watch.
pub struct Watch<S = Socket> {
    framed: FramedSocket<S>,
    hello: Hello,
    /// Time at which the last unanswered probe was sent; `None` if every probe was answered.
    probed_at: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Watch {
    /// Connects and negotiates a version, as [`handshake::connect`](crate::handshake::connect) does.
    ///
    /// # Errors
    /// If there is no server, or no common version.
    pub async fn open(
        transport: &Transport,
        address: &Address,
        software: &str,
    ) -> Result<Self, ConnectError> {
        let dialled = transport.dial_in_time(address).await;
        let socket =
            dialled.map_err(|source| ConnectError::unreachable(address, transport.reason(source)))?;
        let mut hello = hello(software);
        if let Some(token) = transport.token() {
            BearerToken::may_be_shown_to(socket.identity(), address)
                .map_err(|reason| ConnectError::Token { address: address.clone(), reason })?;
            token.secret().clone_into(&mut hello.bearer_token);
        }
        Self::greet(socket, address, hello).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watch<S> {
    /// Negotiates a version over a connection to `address`.
    ///
    /// # Errors
    /// If there is no response, or no common version.
    pub async fn handshake(socket: S, address: &Address, software: &str) -> Result<Self, ConnectError> {
        Self::greet(socket, address, hello(software)).await
    }

    async fn greet(socket: S, address: &Address, hello: HelloRequest) -> Result<Self, ConnectError> {
        let mut framed = FramedSocket::new(socket, MAX_MESSAGE, None);
        framed.queue(Bytes::from_static(&PREAMBLE));
        framed.queue(encode_frame(&WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) }));
        let unheard = Hello { version: 0, store: None, location: None, software: String::new() };
        let mut watch =
            Self { framed, hello: unheard, probed_at: None, timer: Box::pin(sleep(KEEP_ALIVE.0)) };
        let no_hello =
            |status: Status| ConnectError::NoHello { address: address.clone(), status: Box::new(status) };
        let response = match timeout(HELLO_TIMEOUT, watch.next()).await {
            Err(_) => return Err(no_hello(Status::deadline_exceeded("it did not respond"))),
            Ok(Err(status)) if status.code() == Code::FailedPrecondition => {
                return Err(ConnectError::Version {
                    address: address.clone(),
                    reason: status.message().to_owned(),
                });
            }
            Ok(Err(status)) if status.code() == Code::Unauthenticated => {
                let reason = status.message().to_owned();
                return Err(ConnectError::Token { address: address.clone(), reason });
            }
            Ok(response) => response.map_err(no_hello)?,
        };
        let Some(Kind::Hello(hello)) = response.kind else {
            return Err(no_hello(Status::internal("its first message is not a hello")));
        };
        watch.hello = Hello::from_response(hello, address)?;
        Ok(watch)
    }

    /// The server's response to the handshake.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sends a request with the next call of [`Watch::next`].
    pub fn send(&mut self, request: &WatchRequest) {
        self.framed.queue(encode_frame(request));
    }

    /// Sends queued requests and waits for the next response. Cancel-safe.
    ///
    /// # Errors
    /// The status with which the server ended the watch, or a lost connection.
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Sends queued requests, and waits until the server has read them and ended the watch. Discards responses.
    ///
    /// # Errors
    /// If the connection is lost earlier.
    pub async fn close(mut self) -> Result<(), Status> {
        poll_fn(|cx| self.framed.poll_flush(cx)).await.map_err(|error| broken(&error))?;
        poll_fn(|cx| self.framed.poll_shutdown(cx)).await.map_err(|error| broken(&error))?;
        while self.next().await.is_ok() {}
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchResponse, Status>> {
        loop {
            if let Poll::Ready(Err(error)) = self.framed.poll_flush(cx) {
                return Poll::Ready(Err(broken(&error)));
            }
            match self.framed.poll_frame(cx) {
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

    /// Probes the server, or fails if the last probe timed out. Called when the timer fires.
    fn probe(&mut self) -> Result<(), Status> {
        let ((quiet, patience), heard, now) = (KEEP_ALIVE, self.framed.last_received(), Instant::now());
        let due = if now < heard + quiet {
            heard + quiet
        } else if self.probed_at.is_some_and(|probed_at| probed_at > heard) {
            return Err(Status::unavailable(format!("it sent nothing for {:?}", quiet + patience)));
        } else {
            self.probed_at = Some(now);
            self.framed.queue(encode_frame(&()));
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

fn hello(software: &str) -> HelloRequest {
    HelloRequest {
        oldest_version: *PROTOCOL.start(),
        newest_version: *PROTOCOL.end(),
        software: software.to_owned(),
        ..HelloRequest::default()
    }
}

fn read(frame: Bytes) -> Result<WatchResponse, Status> {
    let message = WatchResponse::decode(frame)
        .map_err(|error| Status::internal(format!("it sent an invalid message: {error}")))?;
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
