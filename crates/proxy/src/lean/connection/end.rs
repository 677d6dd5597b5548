//! How a connection ends, or goes on elsewhere.

use std::{
    future::poll_fn,
    mem,
    task::{Poll, ready},
};

use bytes::Bytes;
use fairmesh_http::h1::{ResponseContext, write_response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use super::{Connection, LINGER, Source};
use crate::lean::{Ended, Left, switch::Begins, upload::Reading};

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Decides whether the answer of this status is the last message, and the connection is then of whoever waits for what
    /// `begins`. What follows can only be told from the body of the request once that has ended.
    pub(super) fn switch(&mut self, begins: Option<Begins>, asked: ResponseContext, status: StatusCode) {
        let is_read = matches!(self.source, Source::Here(_));
        self.begins = begins.filter(|_| is_read && asked.switches_protocol(status));
        if asked.is_connect() && self.begins.is_none() {
            // A program that did not wait for its tunnel may have passed on what somebody else says in it. Taken for requests,
            // that would be said in the program's name.
            self.read_no_more();
        }
    }

    /// Takes nothing for a request any more.
    fn read_no_more(&mut self) {
        if let Source::Here(reading) = mem::replace(&mut self.source, Source::Lost) {
            self.source = Source::Unread(reading);
        }
    }

    /// After the last answer.
    pub(in crate::lean) async fn end(mut self) -> Ended<R, W> {
        match self.begins.take() {
            Some(begins) => self.left().map_or(Ended::Done, |left| Ended::Switched(left, begins)),
            None => {
                self.close().await;
                Ended::Done
            }
        }
    }

    /// Leaves the connection to whoever understands what comes; `None` where it is lost.
    pub(in crate::lean) fn left(self) -> Option<Left<R, W>> {
        match self.source {
            Source::Here(Reading { io, input, .. }) => {
                Some(Left { reader: io, writer: self.writer, read: input.into_bytes() })
            }
            Source::Lent(_) | Source::Unread(_) | Source::Lost => None,
        }
    }

    /// Says why what came is not served, and closes.
    pub(in crate::lean) async fn refuse(&mut self, status: StatusCode, why: &'static str) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let length = Some(why.len() as u64 + 1);
        let date = || self.date.now();
        write_response(
            self.output.clear(),
            (status, &headers),
            ResponseContext::unknown(),
            (length, false),
            date,
        );
        self.output.keep_unsent(Some(Bytes::from_static(why.as_bytes())), b"\n", 0);
        self.read_no_more();
        if self.flush().await.is_ok() {
            self.close().await;
        }
    }

    /// Ends the connection after its last answer.
    pub(in crate::lean) async fn close(&mut self) {
        // Fails only where the program has gone.
        let _ = self.writer.shutdown().await;
        if let Source::Unread(reading) = &mut self.source {
            let ended = poll_fn(|context| {
                loop {
                    reading.input.clear();
                    if !matches!(ready!(reading.poll_read(0, context)), Ok(1..)) {
                        return Poll::Ready(());
                    }
                }
            });
            let _ = timeout(LINGER, ended).await;
        }
    }
}
