//! Requests that are answered without being taken apart.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_http::{
    h1::{BorrowedResponse, WriteBuffer, thread_buffers},
    informational,
};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Connection, Source, reply::KEPT};
use crate::{
    lean::{Broken, Upload, date::Date},
    stopping::Stopping,
};

/// Where an answer goes.
pub(crate) struct Reply<'a, W> {
    writer: &'a mut W,
    output: &'a mut WriteBuffer,
    date: &'a mut Date,
}

impl<W: AsyncWrite + Unpin> Reply<'_, W> {
    /// Sends an answer as far as that goes now, and keeps what does not; whether that was all. `closes`: whether the connection
    /// ends with it.
    pub(crate) fn send(
        &mut self,
        answer: &BorrowedResponse<'_>,
        closes: bool,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        thread_buffers::with_write_buffer(|text| {
            answer.write(text, || self.date.now(), closes);
            let rest = thread_buffers::append_short(text, answer.body);
            self.write([text, rest], context)
        })
    }

    fn write(&mut self, parts: [&[u8]; 2], context: &mut Context<'_>) -> io::Result<bool> {
        let mut writer = Pin::new(&mut *self.writer);
        let wrote = match parts {
            [text, []] => writer.as_mut().poll_write(context, text),
            parts => writer.as_mut().poll_write_vectored(context, &parts.map(IoSlice::new)),
        };
        let written = match wrote? {
            Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        let kept = self.output.clear();
        thread_buffers::keep_unsent(kept, parts, written);
        // A socket has nothing to flush; TLS keeps what the socket below did not take.
        Ok(kept.is_empty() && writer.poll_flush(context)?.is_ready())
    }
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// What came and was not used, the next request first.
    pub(crate) fn input(&self) -> &[u8] {
        match &self.source {
            Source::Here(reading) => &reading.input,
            Source::Lent(_) | Source::Unread(_) | Source::Lost => &[],
        }
    }

    /// Forgets the body of the first request, which lies there, and gives its memory back: it is needed no more.
    pub(crate) fn forget(&mut self, body: Range<usize>) {
        if let Source::Here(reading) = &mut self.source {
            reading.forget(body);
        }
    }

    /// Waits until `poll` has begun to send an answer to the first request, which has this length, or has nothing more to wait
    /// for; and for the program to give up.
    pub(crate) async fn wait<T>(
        &mut self,
        length: usize,
        mut poll: impl FnMut(Reply<'_, W>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Broken> {
        self.passing = match &self.source {
            Source::Here(reading) => reading.lies(length),
            Source::Lent(_) | Source::Unread(_) | Source::Lost => 0,
        };
        let answered = poll_fn(|context| {
            let Self { writer, output, date, .. } = self;
            let (answered, before) = informational::collect(|| poll(Reply { writer, output, date }, context));
            // What comes behind one is taken apart, and sent behind it. A plain request is of HTTP/1.1.
            self.inform(&before);
            if let Poll::Ready(answered) = answered {
                return Poll::Ready(Ok(answered));
            }
            if !self.output.is_empty()
                && let Poll::Ready(Err(error)) = self.output.poll_flush(&mut self.writer, context)
            {
                return Poll::Ready(Err(error.into()));
            }
            ready!(self.poll_gone(context));
            Poll::Ready(Err(Broken::Gone))
        });
        let answered = answered.await;
        self.passing = 0;
        answered
    }

    /// Sends the rest of the answer to the first request, which has this length, where not all of it is `sent`, and goes on to
    /// the next one.
    pub(crate) async fn answered(&mut self, sent: bool, length: usize) -> Result<(), Broken> {
        if !sent {
            self.flush().await?;
            self.output.shrink(KEPT);
        }
        if let Source::Here(reading) = &mut self.source {
            reading.pass_over(length);
        }
        self.requests.note_request();
        self.fresh = true;
        Ok(())
    }

    /// Has the first request, which is whole but for what was forgotten, answered as one that is taken apart; whether the connection
    /// may carry another.
    pub(crate) async fn take_apart<A, F, B>(&mut self, answer: A, stopping: &Stopping) -> Result<bool, Broken>
    where
        A: FnOnce(Request<Upload<R>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let received = match &mut self.source {
            Source::Here(reading) => {
                let received = self.requests.read(&mut reading.input);
                received.map(|found| found.map(|received| reading.without_forgotten(received)))
            }
            Source::Lent(_) | Source::Unread(_) | Source::Lost => Ok(None),
        };
        match received {
            Ok(Some(received)) => self.exchange(received, answer, stopping).await,
            // What is plain is a request by every reader.
            Ok(None) | Err(_) => Err(Broken::Short),
        }
    }
}
