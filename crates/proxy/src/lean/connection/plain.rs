//! Requests that are answered without being taken apart.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::{BoxError, http1};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Connection, Source, reply::KEPT};
use crate::{
    lean::{Broken, Upload, date::Date},
    stopping::Stopping,
};

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

    /// Waits until `poll` has written an answer to the first request, and sends that, or has nothing more to wait for; and for
    /// the program to give up.
    pub(crate) async fn wait<T>(
        &mut self,
        mut poll: impl FnMut(&mut Vec<u8>, &mut Date, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Broken> {
        let (answered, sent) = poll_fn(|context| {
            let polled = http1::scratch::text(|text| {
                let answered = ready!(poll(text, &mut self.date, context));
                Poll::Ready(self.begin_sending(text, context).map(|sent| (answered, sent)))
            });
            if let Poll::Ready(answered) = polled {
                return Poll::Ready(answered.map_err(Broken::Io));
            }
            ready!(self.poll_gone(context));
            Poll::Ready(Err(Broken::Gone))
        })
        .await?;
        if !sent {
            self.flush().await?;
            self.output.shrink(KEPT);
        }
        Ok(answered)
    }

    /// Sends text as far as that goes now, and keeps what does not; whether that was all.
    fn begin_sending(&mut self, text: &[u8], context: &mut Context<'_>) -> io::Result<bool> {
        let mut left = text;
        while !left.is_empty()
            && let Poll::Ready(written) = Pin::new(&mut self.writer).poll_write(context, left)?
        {
            left = match written {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => &left[written..],
            };
        }
        self.output.clear().extend_from_slice(left);
        // A socket has nothing to flush; TLS keeps what the socket below did not take.
        Ok(left.is_empty() && Pin::new(&mut self.writer).poll_flush(context)?.is_ready())
    }

    /// Passes over the first request, which was answered and has this length.
    pub(crate) fn answered(&mut self, length: usize) {
        if let Source::Here(reading) = &mut self.source {
            http1::pass_over(&mut reading.input, length);
        }
        (self.fresh, self.expected) = (true, length);
    }

    /// Has the first request, which is whole, answered as one that is taken apart; whether the connection may carry another.
    pub(crate) async fn take_apart<A, F, B>(&mut self, answer: A, stopping: &Stopping) -> Result<bool, Broken>
    where
        A: FnOnce(Request<Upload<R>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let received = match &mut self.source {
            Source::Here(reading) => self.requests.read(&mut reading.input),
            Source::Lent(_) | Source::Unread(_) | Source::Lost => Ok(None),
        };
        match received {
            Ok(Some(received)) => self.exchange(received, answer, stopping).await,
            // What is plain is a request by every reader.
            Ok(None) | Err(_) => Err(Broken::Short),
        }
    }
}
