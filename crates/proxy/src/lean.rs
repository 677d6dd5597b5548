//! HTTP/1.1 served without hyper: a connection is one loop that reads a head, has it answered, and writes what comes.
//!
//! hyper's server hands each request over between two state machines, and each piece of a body through a channel. Here
//! whoever answers is polled where the head was read, a body that came with its head is passed on where it lies, and the
//! head of an answer goes out with what is at hand of its body: one read and one write a request. A connection that turns out
//! to carry HTTP/2, or is to carry a tunnel or another protocol after an answer, is left to others as it is.

mod connection;
mod date;
mod switch;
mod upload;

#[cfg(test)]
mod tests;

use std::{future::poll_fn, io, mem, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use fairmesh_client::BoxError;
use fairmesh_http::h1::WrongLength;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use connection::Connection;
use connection::Next;
pub(crate) use date::Date;
pub(crate) use switch::{Begins, Stream, Switch};
pub(crate) use upload::Upload;

use crate::stopping::Stopping;

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum Ended<R, W> {
    /// As it should.
    Done,
    /// Early.
    Broken(Broken),
    /// It carries HTTP/2.
    Http2(Left<R, W>),
    /// It carries what was asked for, now that this is answered.
    Switched(Left<R, W>, Begins),
}

/// What is left of a connection: its halves, and what was read and not used.
#[derive(Debug)]
pub(crate) struct Left<R, W> {
    pub(crate) reader: R,
    pub(crate) writer: W,
    pub(crate) read: BytesMut,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it was not HTTP/1.1 that is served: {0}")]
    Refused(&'static str),
    #[error("it ended in the middle of a request")]
    Short,
    #[error("its program had gone before it was answered")]
    Gone,
    #[error("its program took too long to send the head of a request, or to take an answer")]
    Late,
    #[error("it broke")]
    Io(#[from] io::Error),
    #[error("the answer broke off")]
    Answer(#[source] BoxError),
    #[error("the answer was not framed as it said")]
    Length(#[from] WrongLength),
}

/// Who answers the requests of a connection.
pub(crate) trait Answer<R> {
    type Body: Body<Data = Bytes, Error: Into<BoxError>>;

    async fn answer(&self, request: Request<Upload<R>>) -> Response<Self::Body>;

    /// Whether [`pass`](Self::pass) may do anything.
    fn passes(&self) -> bool {
        false
    }

    /// Answers the request that lies first in what came, without taking it apart; whether the connection may carry another.
    /// `None` where that is not done, and nothing was.
    async fn pass<W>(
        &self,
        _connection: &mut Connection<R, W>,
        _stopping: &Stopping,
    ) -> Result<Option<bool>, Broken>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin,
    {
        Ok(None)
    }
}

/// Whoever takes every request apart.
impl<R, A, F, B> Answer<R> for A
where
    A: Fn(Request<Upload<R>>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Body = B;

    async fn answer(&self, request: Request<Upload<R>>) -> Response<B> {
        self(request).await
    }
}

/// Serves a connection until it ends, idles for longer than `patience`, or the proxy stops: after an answer,
/// which says so, or once no more requests are waited for. Whoever polls this must be woken when either is so.
/// `patience` also bounds how long the head of a request takes to come, and a piece of an answer to be taken.
pub(crate) fn serve<R, W, A>(
    (reader, writer): (R, W),
    patience: Duration,
    stopping: &Stopping,
    answers: &A,
) -> impl Future<Output = Ended<R, W>>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin,
    A: Answer<R>,
{
    run(Connection::new(reader, writer, patience), stopping, answers)
}

#[allow(clippy::manual_async_fn, reason = "an `async fn` keeps room for what it is given twice")]
fn run<R, W, A>(
    mut connection: Connection<R, W>,
    stopping: &Stopping,
    answers: &A,
) -> impl Future<Output = Ended<R, W>>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin,
    A: Answer<R>,
{
    async move {
        loop {
            let answered = match connection.next(answers.passes(), stopping).await {
                Next::Begun => {
                    if connection.input().len() <= SMALL {
                        after_others().await;
                    }
                    match answers.pass(&mut connection, stopping).await {
                        Ok(Some(persistent)) => Ok(persistent),
                        Ok(None) => continue,
                        Err(why) => Err(why),
                    }
                }
                // Boxed, as the end is, so that a connection that idles keeps no room for it.
                Next::Request(received) => {
                    Box::pin(connection.exchange(*received, |request| answers.answer(request), stopping))
                        .await
                }
                Next::Refused(status, why) => {
                    connection.refuse(status, why).await;
                    return Ended::Broken(Broken::Refused(why));
                }
                Next::Http2 => return connection.left().map_or(Ended::Done, Ended::Http2),
                Next::Idle => {
                    connection.close().await;
                    return Ended::Done;
                }
                Next::Broken(why) => return Ended::Broken(why),
            };
            match answered {
                Ok(true) => {}
                Ok(false) => return Box::pin(connection.end()).await,
                Err(why) => return Ended::Broken(why),
            }
        }
    }
}

/// Up to which length requests that come together are sent on together. Larger ones would have left the processor's nearest cache by
/// then, and cost more than that saves.
const SMALL: usize = 8 * 1024;

/// Lets the tasks that were woken with this one read first. Requests that come together are sent on together, and a server on this
/// host that sleeps is woken once for several of them. `yield_now` would ask the system for more events before that.
async fn after_others() {
    let mut waited = false;
    poll_fn(|context| {
        if mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
