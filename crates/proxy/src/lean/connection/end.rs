//! How a connection ends, or goes on elsewhere.

use std::{
    future::poll_fn,
    mem,
    task::{Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::http1::{Asked, response as write_response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use super::{Connection, LINGER, Source};
use crate::lean::{Ended, Left, upload::Reading};

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
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
        write_response(self.output.clear(), (status, &headers), Asked::unknown(), (length, false), date);
        self.output.begun(Some(Bytes::from_static(why.as_bytes())), b"\n", 0);
        if let Source::Here(reading) = mem::replace(&mut self.source, Source::Lost) {
            self.source = Source::Unread(reading);
        }
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
