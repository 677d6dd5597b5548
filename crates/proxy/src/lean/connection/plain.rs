//! Requests that are answered without being taken apart.

use std::{
    future::{Future, poll_fn},
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

    /// Waits until `poll` has written an answer, or has nothing more to wait for, and for the program to give up.
    pub(crate) async fn wait<T>(
        &mut self,
        mut poll: impl FnMut(&mut Vec<u8>, &mut Date, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Broken> {
        self.output.clear();
        poll_fn(|context| {
            if let Poll::Ready(answered) = poll(self.output.text(), &mut self.date, context) {
                return Poll::Ready(Ok(answered));
            }
            ready!(self.poll_gone(context));
            Poll::Ready(Err(Broken::Gone))
        })
        .await
    }

    /// Sends the answer that is written to the first request, which has this length.
    pub(crate) async fn answered(&mut self, length: usize) -> Result<(), Broken> {
        self.flush().await?;
        self.output.shrink(KEPT);
        if let Source::Here(reading) = &mut self.source {
            http1::pass_over(&mut reading.input, length);
        }
        self.fresh = true;
        Ok(())
    }

    /// Has the first request, which is whole, answered as one that is taken apart; whether the connection may carry another.
    pub(crate) async fn take_apart<A, F, B>(
        &mut self,
        answer: A,
        stopping: &Stopping,
    ) -> Result<bool, Broken>
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
