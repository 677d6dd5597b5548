//! Serves HTTP/1.1 without hyper: a connection is one loop that reads a request, polls its handler, and writes the
//! response.
//!
//! hyper's server passes each request between two state machines, and each chunk of a body through a channel. Here the
//! handler is polled by the reader, a body that arrived with its headers is forwarded from the buffer, and the response
//! headers are sent together with available body data: one read and one write for each request. Connections that speak
//! HTTP/2 or are upgraded are handed over to other modules.

use std::{future::poll_fn, mem, task::Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{
        connection::{Connection, NextRequest},
        connection_end::{ConnectionEnd, ConnectionError},
        request_handler::RequestHandler,
        request_offload::Offload,
    },
    shutdown::Shutdown,
};

/// Serves a connection until it ends, is idle for longer than its timeout, or the proxy stops. When the proxy
/// stops, the connection ends after a response with `connection: close`, or once the idle grace is over. The
/// caller must poll again when the shutdown starts and when the idle grace is over. The idle timeout also
/// limits the time for request headers and for each write to the client.
#[allow(clippy::manual_async_fn, reason = "an `async fn` keeps room for what it is given twice")]
pub(crate) fn serve<R, W, O, A>(
    mut connection: Connection<R, W, O>,
    shutdown: &Shutdown,
    handler: &A,
) -> impl Future<Output = ConnectionEnd<R, W>>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin,
    O: Offload,
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
                // Boxed, like the end of a connection, so that idle connections reserve no space for it.
                NextRequest::Request(received) => {
                    Box::pin(connection.exchange(*received, |request| handler.handle(request), shutdown))
                        .await
                }
                NextRequest::Refused(status, reason) => {
                    connection.refuse((status, reason), shutdown).await;
                    return ConnectionEnd::Failed(ConnectionError::Refused(reason));
                }
                NextRequest::Http2 => {
                    return connection.into_parts().map_or(ConnectionEnd::Closed, ConnectionEnd::Http2);
                }
                NextRequest::Idle => {
                    connection.close(shutdown).await;
                    return ConnectionEnd::Closed;
                }
                NextRequest::Failed(reason) => return ConnectionEnd::Failed(reason),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return Box::pin(connection.finish(shutdown)).await,
                Err(reason) => return ConnectionEnd::Failed(reason),
            }
        }
    }
}

/// Size below which a request first lets other tasks read, in bytes. Larger requests would meanwhile be evicted from
/// the nearest CPU cache, which costs more than it saves.
const YIELD_BELOW: usize = 8 * 1024;

/// Lets tasks that were woken together with this one read first. Requests that arrive together are then sent
/// together, and a sleeping server on this host is woken once for several requests. `yield_now` was rejected, since
/// it would poll the system for events in between.
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
