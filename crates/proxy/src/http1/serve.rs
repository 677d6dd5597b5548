//! HTTP/1.1 served without hyper: a connection is one loop that reads a head, has it answered, and writes what comes.
//!
//! hyper's server hands each request over between two state machines, and each piece of a body through a channel. Here
//! whoever answers is polled where the head was read, a body that came with its head is passed on where it lies, and the
//! head of an answer goes out with what is at hand of its body: one read and one write a request. A connection that turns out
//! to carry HTTP/2, or is to carry a tunnel or another protocol after an answer, is left to others as it is.

use std::{future::poll_fn, mem, task::Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{
        connection::{Connection, NextRequest},
        handler::RequestHandler,
        outcome::{ConnectionEnd, ConnectionError},
    },
    lifecycle::shutdown::Shutdown,
};

/// Serves a connection until it ends, idles for longer than `patience`, or the proxy stops: after an answer,
/// which says so, or once no more requests are waited for. Whoever polls this must be woken when either is so.
/// `patience` also bounds how long the head of a request takes to come, and a piece of an answer to be taken.
#[allow(clippy::manual_async_fn, reason = "an `async fn` keeps room for what it is given twice")]
pub(crate) fn serve<R, W, A>(
    mut connection: Connection<R, W>,
    shutdown: &Shutdown,
    handler: &A,
) -> impl Future<Output = ConnectionEnd<R, W>>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin,
    A: RequestHandler<R>,
{
    async move {
        loop {
            let outcome = match connection.next_request(handler.has_fast_path(), shutdown).await {
                NextRequest::Started => {
                    if connection.input().len() <= YIELD_BELOW {
                        yield_once().await;
                    }
                    match handler.try_fast_path(&mut connection, shutdown).await {
                        Ok(Some(persistent)) => Ok(persistent),
                        Ok(None) => continue,
                        Err(reason) => Err(reason),
                    }
                }
                // Boxed, as the end is, so that a connection that idles keeps no room for it.
                NextRequest::Request(received) => {
                    Box::pin(connection.exchange(*received, |request| handler.handle(request), shutdown))
                        .await
                }
                NextRequest::Refused(status, reason) => {
                    connection.refuse(status, reason).await;
                    return ConnectionEnd::Failed(ConnectionError::Refused(reason));
                }
                NextRequest::Http2 => {
                    return connection.into_parts().map_or(ConnectionEnd::Closed, ConnectionEnd::Http2);
                }
                NextRequest::Idle => {
                    connection.close().await;
                    return ConnectionEnd::Closed;
                }
                NextRequest::Failed(reason) => return ConnectionEnd::Failed(reason),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return Box::pin(connection.finish()).await,
                Err(reason) => return ConnectionEnd::Failed(reason),
            }
        }
    }
}

/// Up to which length requests that come together are sent on together. Larger ones would have left the processor's nearest cache by
/// then, and cost more than that saves.
const YIELD_BELOW: usize = 8 * 1024;

/// Lets the tasks that were woken with this one read first. Requests that come together are sent on together, and a server on this
/// host that sleeps is woken once for several of them. `yield_now` would ask the system for more events before that.
async fn yield_once() {
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
