//! A plain request and its answer, on a connection of its own for that long.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Method;
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    time::Instant,
};

use super::{Connection, Io, broken, cut};
use crate::transport::{
    Line, Outgoing, Reply, SendError,
    h1::{self, upload::Upload},
};
use fairmesh_http::{
    h1::{
        BorrowedResponse, Encoder, Framing, REMAINDER_WAIT, ReceivedResponse, ResponseReader, header_storage,
        is_nearly_complete_response, thread_buffers,
    },
    informational,
};

/// A connection that waits for the answer to a plain request.
pub(crate) struct Plain {
    connection: Box<Connection>,
    /// Reads an answer that is not plain.
    apart: Option<ResponseReader>,
    /// Until when the rest of a large one is waited for.
    rest_by: Option<Instant>,
}

/// What came.
pub(crate) enum Got<T> {
    /// A plain answer, and what was made of it.
    Plain(T),
    /// Another one.
    Other(ReceivedResponse),
}

impl Plain {
    /// Sends a request over a connection to the server that waits for one; `None` where there is none. `head` writes its head.
    pub(crate) fn begin(line: &Line, head: impl FnOnce(&mut Vec<u8>), body: &[u8]) -> Option<Self> {
        let pool = line.h1.here();
        let mut connection = pool.take()?.connection;
        thread_buffers::with_write_buffer(|text| {
            head(text);
            let rest = thread_buffers::append_short(text, body);
            // One that the server closed while it was idle took nothing: the next one is as good.
            while connection.send_plain(text, rest).is_err() {
                connection = pool.take()?.connection;
            }
            Some(())
        })?;
        line.counters.reused();
        Some(Self { connection, apart: None, rest_by: None })
    }

    /// Waits for the answer, at most until then; of a plain one, makes what `take` does of it.
    pub(crate) fn poll<T>(
        &mut self,
        until: Instant,
        take: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<Got<T>, SendError>> {
        let polled = self.poll_answer(take, context);
        self.connection.alarm.bound(polled, until, context)
    }

    fn poll_answer<T>(
        &mut self,
        take: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<Got<T>, SendError>> {
        self.connection.send_rest(context);
        if self.apart.is_none() {
            let connection = &mut *self.connection;
            let taken = if connection.expected < thread_buffers::READ_SIZE && connection.input.is_empty() {
                thread_buffers::with_read_buffer(|room| connection.poll_small(room, take, context))
            } else {
                connection.poll_large(take, context)
            };
            match taken.map_err(broken)? {
                Poll::Ready(Some(taken)) => return Poll::Ready(Ok(Got::Plain(taken))),
                Poll::Ready(None) => {}
                Poll::Pending if !self.gives_up(context) => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        // As of every method whose answers have bodies like any other.
        let other = || ResponseReader::new(&Method::GET).informing(informational::deliver);
        let reader = self.apart.get_or_insert_with(other);
        loop {
            if let Some(answer) = reader.read(&mut self.connection.input).map_err(broken)? {
                return Poll::Ready(Ok(Got::Other(answer)));
            }
            let due = self.connection.expected;
            if ready!(self.connection.poll_read(due, context)).map_err(broken)? == 0 {
                return Poll::Ready(Err(broken(cut("before it answered"))));
            }
        }
    }

    /// Whether the rest of an answer, most of which has come, is waited for no longer: what there is goes on alone.
    fn gives_up(&mut self, context: &mut Context<'_>) -> bool {
        let Self { connection, rest_by, .. } = self;
        if connection.input.is_empty() {
            return false;
        }
        let by = *rest_by.get_or_insert_with(|| Instant::now() + REMAINDER_WAIT);
        connection.alarm.has_rung(by, context)
    }

    /// The answer that was not plain: its body is read as it comes.
    pub(crate) fn into_reply(self, answer: ReceivedResponse) -> Reply {
        let ReceivedResponse { head, body, persistent } = answer;
        let mut connection = self.connection;
        connection.persistent &= persistent;
        connection.expect(&body);
        if !connection.output.is_empty() {
            // The server may wait for it before it answers on.
            let upload = Upload::new(Outgoing::empty(), Encoder::new(Framing::Absent));
            connection = Box::new(connection.finish_later(upload));
        }
        Reply::H1(h1::Reply { response: head.map(|()| h1::Incoming::new(connection, body, false)) })
    }

    /// Keeps the connection for another call, after a plain answer.
    pub(crate) fn give_back(self, line: &Arc<Line>) {
        if self.connection.is_reusable() && !line.is_retired() {
            line.h1.here().put_used(self.connection);
        }
    }
}

impl Connection {
    /// Sends a text and what follows it as far as one write goes, and keeps what does not; an error where nothing was sent.
    fn send_plain(&mut self, text: &[u8], rest: &[u8]) -> io::Result<()> {
        let Io::Whole(io) = &mut self.io else { return Err(ErrorKind::NotConnected.into()) };
        let wrote = match rest {
            [] => io.try_write(text),
            rest => io.try_write_vectored(&[IoSlice::new(text), IoSlice::new(rest)]),
        };
        let written = match wrote {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            wrote => wrote?,
        };
        thread_buffers::keep_unsent(self.output.clear(), [text, rest], written);
        self.persistent = true;
        Ok(())
    }

    /// Reads an answer that is likely to be small, and makes what `take` does of it where it is plain; else it is kept.
    fn poll_small<T>(
        &mut self,
        room: &mut [u8],
        take: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<T>>> {
        let Io::Whole(io) = &mut self.io else { return Poll::Ready(Ok(None)) };
        let mut read = ReadBuf::new(room);
        ready!(Pin::new(io).poll_read(context, &mut read))?;
        let came = read.filled();
        if came.is_empty() {
            return Poll::Ready(Err(cut("before it answered")));
        }
        if let Some(answer) = BorrowedResponse::read(came, &mut header_storage()) {
            self.expected = came.len();
            return Poll::Ready(Ok(Some(take(&answer, context))));
        }
        self.input.append(came);
        if is_nearly_complete_response(came) { self.poll_large(take, context) } else { Poll::Ready(Ok(None)) }
    }

    /// Reads on in an answer that is likely to be large, as [`poll_small`](Self::poll_small) does; waits for the rest where most
    /// of it has come, which were otherwise sent on by itself.
    fn poll_large<T>(
        &mut self,
        take: impl FnOnce(&BorrowedResponse<'_>, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<T>>> {
        loop {
            let due = self.expected.saturating_sub(self.input.len());
            if ready!(self.poll_read(due, context))? == 0 {
                return Poll::Ready(Err(cut("before it answered")));
            }
            if let Some(answer) = BorrowedResponse::read(&self.input, &mut header_storage()) {
                self.expected = self.input.len();
                let taken = take(&answer, context);
                self.input.clear();
                return Poll::Ready(Ok(Some(taken)));
            }
            if !is_nearly_complete_response(&self.input) {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Sends what is left of a plain request. A server that takes no more of it may have answered, and the answer says why; else
    /// reading fails as well.
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

    use http_body_util::BodyExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpSocket,
    };

    use super::*;

    /// Begins to answer before it has read more than a head of a body of so many bytes, and ends once it has read that.
    async fn answer_early(mut stream: tokio::net::TcpStream, head: usize, body: usize) -> io::Result<()> {
        let mut read = vec![0; head];
        stream.read_exact(&mut read).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
        read.resize(body, 0);
        stream.read_exact(&mut read).await?;
        stream.write_all(b"3\r\ntea\r\n0\r\n\r\n").await
    }

    #[tokio::test]
    async fn the_rest_of_a_request_is_sent_whose_answer_begins_early() {
        // So small that a request does not fit on the way.
        let (server, client) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
        server.set_recv_buffer_size(2 << 10).unwrap();
        client.set_send_buffer_size(2 << 10).unwrap();
        server.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = server.listen(1).unwrap();
        let connecting = client.connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connecting, listener.accept());
        let (head, body) = (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 65536\r\n\r\n", vec![7; 65_536]);
        let answering = tokio::spawn(answer_early(accepted.unwrap().0, head.len(), body.len()));
        let mut connection = Box::new(Connection::new(stream.unwrap(), None));
        connection.send_plain(head, &body).unwrap();
        assert!(!connection.output.is_empty(), "all of it was sent at once");
        let mut plain = Plain { connection, apart: None, rest_by: None };
        let until = Instant::now() + Duration::from_secs(20);
        let got = poll_fn(|context| plain.poll(until, |_, _| (), context)).await;
        let Ok(Got::Other(answer)) = got else { panic!("it is in chunks") };
        let Reply::H1(reply) = plain.into_reply(answer) else { panic!("it is of HTTP/1.1") };
        let told = tokio::time::timeout_at(until, reply.response.into_body().collect()).await;
        assert_eq!(told.expect("the server waits for the rest").unwrap().to_bytes(), "tea");
        answering.await.unwrap().unwrap();
    }
}
