//! A plain request and its answer, on a connection of its own for that long.

use std::{
    io::{self, ErrorKind, IoSlice},
    mem,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Method;
use tokio::time::Instant;

use super::{Connection, Io, broken, cut};
use crate::{
    http1::{Answer, HeadReader, Looked, PlainAnswer, pass_over, room},
    transport::{Line, Reply, SendError, h1},
};

/// A connection that waits for the answer to a plain request.
pub(crate) struct Plain {
    connection: Box<Connection>,
    /// Reads an answer that is not plain.
    apart: Option<HeadReader>,
}

/// What came.
pub(crate) enum Got<T> {
    /// A plain answer, and what was made of it.
    Plain(T),
    /// Another one.
    Other(Answer),
}

impl Plain {
    /// Sends a request over a connection to the server that waits for one; `None` where there is none. `head` writes its head.
    pub(crate) fn begin(line: &Line, head: impl FnOnce(&mut Vec<u8>), body: &[u8]) -> Option<Self> {
        let pool = line.h1.here();
        let mut connection = pool.take()?.connection;
        head(connection.output.clear());
        let rest = if connection.output.copy(body, b"") { &[] } else { body };
        // One that the server closed while it was idle took nothing: the next one is as good.
        while connection.send_plain(rest).is_err() {
            let mut next = pool.take()?.connection;
            mem::swap(&mut next.output, &mut connection.output);
            connection = next;
        }
        line.counters.reused();
        Some(Self { connection, apart: None })
    }

    /// Waits for the answer, at most until then; of a plain one, makes what `take` does of it.
    pub(crate) fn poll<T>(
        &mut self,
        until: Instant,
        take: impl FnOnce(&PlainAnswer<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<Got<T>, SendError>> {
        let polled = self.poll_answer(take, context);
        self.connection.alarm.bound(polled, Some(until), context)
    }

    fn poll_answer<T>(
        &mut self,
        take: impl FnOnce(&PlainAnswer<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Result<Got<T>, SendError>> {
        let Self { connection, apart } = self;
        connection.send_rest(context);
        loop {
            if let Some(reader) = apart {
                if let Some(answer) = reader.read(&mut connection.input).map_err(broken)? {
                    return Poll::Ready(Ok(Got::Other(answer)));
                }
            } else {
                match PlainAnswer::look(&connection.input, &mut room()) {
                    Looked::Plain(answer) => {
                        let (taken, length) = (take(&answer), answer.length);
                        pass_over(&mut connection.input, length);
                        connection.expected = length;
                        return Poll::Ready(Ok(Got::Plain(taken)));
                    }
                    Looked::Part => {}
                    Looked::Other => {
                        // As of every method whose answers have bodies like any other.
                        *apart = Some(HeadReader::new(&Method::GET));
                        continue;
                    }
                }
            }
            if ready!(connection.poll_read(connection.expected, context)).map_err(broken)? == 0 {
                return Poll::Ready(Err(broken(cut("before it answered"))));
            }
        }
    }

    /// The answer that was not plain: its body is read as it comes.
    pub(crate) fn into_reply(self, answer: Answer) -> Reply {
        let Answer { head, body, persistent } = answer;
        let mut connection = self.connection;
        // What is not sent by now is not waited for.
        connection.persistent = persistent && connection.output.is_empty();
        connection.expect(&body);
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
    /// Sends the text and what follows it, as far as one write goes, and keeps what does not; an error where nothing was sent.
    fn send_plain(&mut self, rest: &[u8]) -> io::Result<()> {
        let Io::Whole(io) = &mut self.io else { return Err(ErrorKind::NotConnected.into()) };
        let text = self.output.text();
        let wrote = match rest {
            [] => io.try_write(text),
            rest => io.try_write_vectored(&[IoSlice::new(text), IoSlice::new(rest)]),
        };
        let written = match wrote {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            wrote => wrote?,
        };
        if written < text.len() + rest.len() {
            text.extend_from_slice(rest);
        }
        let written = written.min(text.len());
        self.output.begun(None, b"", written);
        self.persistent = true;
        Ok(())
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
