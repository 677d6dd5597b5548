//! Borrowed requests and responses on an HTTP/1.1 connection. The request is sent from the caller's buffer, and a
//! response that arrives in one piece is returned as a view of the read buffer. The fast path of `calls` sends its
//! requests this way.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Method, Response};
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    time::Instant,
};

use super::{
    connection::{Connection, Io, broken, closed, unread},
    pool::Pool,
    response_body::ResponseBody,
    upload::Upload,
};
use crate::{
    attempt_waits::{AttemptTimeouts, ResponseWait, SendProgress},
    error::SendError,
    request_body::RequestBody,
};
use fairmesh_http::{
    h1::{
        BorrowedResponse, Encoder, Framing, REMAINDER_WAIT, ReceivedResponse, ResponseReader, header_storage,
        is_nearly_complete_response, thread_buffers,
    },
    informational,
};

/// A connection that is waiting for the response to a borrowed request.
pub struct BorrowedExchange {
    connection: Box<Connection>,
    /// Reads a response that does not qualify for borrowing.
    owned: Option<ResponseReader>,
    /// Time until which to wait for the rest of a large response.
    rest_by: Option<Instant>,
    /// Timeouts of a request that the server did not accept at once; boxed, since that is rare.
    wait: Option<Box<ResponseWait>>,
}

/// The response to a borrowed request.
pub enum BorrowedOutcome<T> {
    /// The response was borrowed; holds the reader's result.
    Borrowed(T),
    /// The response could not be borrowed.
    Owned(ReceivedResponse),
}

impl BorrowedExchange {
    /// Sends a request over an idle connection. Returns `None` if none is idle. `head` writes the request head.
    pub(crate) fn begin(pool: &Pool, head: impl FnOnce(&mut Vec<u8>), body: &[u8]) -> Option<Self> {
        let mut connection = pool.take_connection()?;
        thread_buffers::with_write_buffer(|text| {
            head(text);
            let rest = thread_buffers::append_short(text, body);
            // A connection that the server closed while idle accepts nothing; the next idle connection is tried.
            while connection.send_borrowed(text, rest).is_err() {
                connection = pool.take_connection()?;
            }
            Some(())
        })?;
        Some(Self { connection, owned: None, rest_by: None, wait: None })
    }

    /// Sets timeouts in case the server did not accept the whole request at once. They limit sending the rest and
    /// waiting for the response.
    #[inline]
    pub fn bound_unsent(&mut self, timeouts: impl FnOnce() -> AttemptTimeouts) {
        if !self.connection.output.is_empty() {
            self.wait = Some(Box::new(ResponseWait::new(timeouts())));
        }
    }

    /// Waits for the response, until `until` if the request was sent at once. `read` receives a borrowed response.
    pub fn poll<T>(
        &mut self,
        until: Instant,
        read: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<BorrowedOutcome<T>, SendError>> {
        let polled = self.poll_response(read, context);
        let Self { connection, wait, .. } = self;
        match wait {
            None => connection.timer.bound(polled, until, context),
            Some(wait) => {
                let unsent = connection.output.len();
                let progress = (unsent > 0).then_some(SendProgress { pieces: 0, unsent });
                wait.bound(polled, progress, &mut connection.timer, context)
            }
        }
    }

    fn poll_response<T>(
        &mut self,
        read: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<BorrowedOutcome<T>, SendError>> {
        self.connection.send_rest(context);
        if self.owned.is_none() {
            let connection = &mut *self.connection;
            let result = if connection.expected < thread_buffers::READ_SIZE && connection.input.is_empty() {
                thread_buffers::with_read_buffer(|room| connection.poll_small(room, read, context))
            } else {
                connection.poll_large(read, context)
            };
            match result.map_err(unread)? {
                Poll::Ready(Some(result)) => return Poll::Ready(Ok(BorrowedOutcome::Borrowed(result))),
                Poll::Ready(None) => {}
                Poll::Pending if !self.rest_timed_out(context) => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        // GET stands for any method whose responses have ordinary bodies.
        let owned = || ResponseReader::new(&Method::GET).informing(informational::deliver);
        let reader = self.owned.get_or_insert_with(owned);
        loop {
            if let Some(response) = reader.read(&mut self.connection.input).map_err(broken)? {
                return Poll::Ready(Ok(BorrowedOutcome::Owned(response)));
            }
            let due = self.connection.expected;
            if ready!(self.connection.poll_read(due, context)).map_err(unread)? == 0 {
                return Poll::Ready(Err(broken(closed("before it responded"))));
            }
        }
    }

    /// Whether the rest of a mostly received response is late. If so, the response is streamed.
    fn rest_timed_out(&mut self, context: &mut Context<'_>) -> bool {
        let Self { connection, rest_by, .. } = self;
        if connection.input.is_empty() {
            return false;
        }
        let by = *rest_by.get_or_insert_with(|| Instant::now() + REMAINDER_WAIT);
        connection.timer.has_expired(by, context)
    }

    /// Converts a response that could not be borrowed; its body is streamed.
    pub fn into_response(self, response: ReceivedResponse) -> Response<ResponseBody> {
        let ReceivedResponse { head, body, persistent } = response;
        let mut connection = self.connection;
        connection.persistent &= persistent;
        connection.expect(&body);
        if !connection.output.is_empty() {
            // The server may wait for the rest of the request before it continues the response.
            let upload = Upload::new(RequestBody::empty(), Encoder::new(Framing::Absent));
            connection = Box::new(connection.finish_later(upload));
        }
        head.map(|()| ResponseBody::new(connection, body, false))
    }

    /// Returns the connection for another call, after a borrowed response.
    pub(crate) fn into_reusable(self) -> Option<Box<Connection>> {
        self.connection.is_reusable().then_some(self.connection)
    }
}

impl Connection {
    /// Sends a head and its body as far as one write goes, and buffers the rest. Returns an error if nothing was sent.
    fn send_borrowed(&mut self, text: &[u8], rest: &[u8]) -> io::Result<()> {
        let Io::Whole(io) = &mut self.io else { return Err(ErrorKind::NotConnected.into()) };
        let written = match io.try_write(text, rest) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            wrote => wrote?,
        };
        thread_buffers::keep_unsent(self.output.clear(), [text, rest], written);
        self.persistent = true;
        Ok(())
    }

    /// Reads a response that is probably small. `read` receives it if it can be borrowed; otherwise it is buffered.
    fn poll_small<T>(
        &mut self,
        room: &mut [u8],
        read: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<T>>> {
        let Io::Whole(io) = &mut self.io else { return Poll::Ready(Ok(None)) };
        let mut buffer = ReadBuf::new(room);
        ready!(Pin::new(io).poll_read(context, &mut buffer))?;
        let received = buffer.filled();
        if received.is_empty() {
            return Poll::Ready(Err(closed("before it responded")));
        }
        if let Some(answer) = BorrowedResponse::read(received, &mut header_storage()) {
            self.expected = received.len();
            return Poll::Ready(Ok(Some(read(&answer, context))));
        }
        self.input.append(received);
        if is_nearly_complete_response(received) {
            self.poll_large(read, context)
        } else {
            Poll::Ready(Ok(None))
        }
    }

    /// Reads more of a response that is probably large, like [`poll_small`](Self::poll_small). Once most of it has
    /// arrived, waits for the rest, which would otherwise be forwarded separately.
    fn poll_large<T>(
        &mut self,
        read: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<T>>> {
        loop {
            let due = self.expected.saturating_sub(self.input.len());
            if ready!(self.poll_read(due, context))? == 0 {
                return Poll::Ready(Err(closed("before it responded")));
            }
            if let Some(answer) = BorrowedResponse::read(&self.input, &mut header_storage()) {
                self.expected = self.input.len();
                let result = read(&answer, context);
                self.input.clear();
                return Poll::Ready(Ok(Some(result)));
            }
            if !is_nearly_complete_response(&self.input) {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Sends the rest of a borrowed request. If the server accepts no more of it, it may have responded, and the
    /// response explains why; if not, reading fails as well.
    fn send_rest(&mut self, context: &mut Context<'_>) {
        if let Io::Whole(io) = &mut self.io
            && !self.output.is_empty()
            && matches!(self.output.poll_flush(io, context), Poll::Ready(Err(_)))
        {
            self.persistent = false;
            self.output.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use fairmesh_wire::transport::Stream;
    use http_body_util::BodyExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpSocket,
    };

    use super::*;
    use crate::IdleTimeout;

    /// Begins a response after reading the head of a request, and ends it after reading a body of this size.
    async fn respond_early(mut stream: tokio::net::TcpStream, head: usize, body: usize) -> io::Result<()> {
        let mut read = vec![0; head];
        stream.read_exact(&mut read).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
        read.resize(body, 0);
        stream.read_exact(&mut read).await?;
        stream.write_all(b"3\r\ntea\r\n0\r\n\r\n").await
    }

    /// Returns both ends of a connection whose buffers are smaller than the request.
    async fn small_buffers() -> (Box<Connection>, tokio::net::TcpStream) {
        let (server, client) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
        server.set_recv_buffer_size(2 << 10).unwrap();
        client.set_send_buffer_size(2 << 10).unwrap();
        server.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = server.listen(1).unwrap();
        let connecting = client.connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connecting, listener.accept());
        (Box::new(Connection::new(Stream::Tcp(stream.unwrap()), None)), accepted.unwrap().0)
    }

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 65536\r\n\r\n";

    /// Returns the exchange of a partly sent request.
    fn partly_sent(mut connection: Box<Connection>) -> BorrowedExchange {
        connection.send_borrowed(HEAD, &[7; 65_536]).unwrap();
        assert!(!connection.output.is_empty(), "all of it was sent at once");
        BorrowedExchange { connection, owned: None, rest_by: None, wait: None }
    }

    #[tokio::test]
    async fn request_body_is_sent_completely_though_response_begins_early() {
        let (connection, accepted) = small_buffers().await;
        let responding = tokio::spawn(respond_early(accepted, HEAD.len(), 65_536));
        let mut exchange = partly_sent(connection);
        let until = Instant::now() + Duration::from_secs(20);
        let outcome = poll_fn(|context| exchange.poll(until, |_, _| (), context)).await;
        let Ok(BorrowedOutcome::Owned(response)) = outcome else { panic!("it is chunked") };
        let response = exchange.into_response(response);
        let collected = tokio::time::timeout_at(until, response.into_body().collect()).await;
        assert_eq!(collected.expect("the server waits for the rest").unwrap().to_bytes(), "tea");
        responding.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn request_fails_after_idle_timeout_when_server_stops_reading() {
        let (connection, _accepted) = small_buffers().await;
        let mut exchange = partly_sent(connection);
        let (began, idle) = (Instant::now(), Duration::from_secs(5));
        let until = began + Duration::from_secs(90);
        exchange.bound_unsent(|| AttemptTimeouts { idle, ..AttemptTimeouts::until(until) });
        let outcome = poll_fn(|context| exchange.poll(until, |_, _| (), context)).await;
        assert!(matches!(outcome, Err(SendError::Idle(IdleTimeout::Upload(after))) if after == idle));
        assert_eq!(began.elapsed().as_secs(), 5);
    }
}
