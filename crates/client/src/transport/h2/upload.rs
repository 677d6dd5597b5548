use std::{future::poll_fn, pin::Pin};

use bytes::Bytes;
use h2::{Reason, SendStream, client::ResponseFuture};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::{Opened, Outgoing, Reply, SendError, Stream, classify};
use crate::BoxError;

/// Sends the body and waits for the head of the answer. A body that is all there costs no task; one that is still being
/// made when the answer begins, as two-way streams are, gets one until the answer is dropped.
pub(super) async fn send(opened: Opened) -> Result<Reply, SendError> {
    if opened.body.rest.is_some() {
        // Boxed, so that the others, which are most, are small.
        return Box::pin(send_parts(opened)).await;
    }
    let (place, answer) = send_whole(opened);
    let response = answer.await.map_err(classify)?;
    Ok(place.answered(response))
}

async fn send_parts(opened: Opened) -> Result<Reply, SendError> {
    let Opened { mut place, mut answer, sender, body } = opened;
    let mut upload = Box::pin(pump(body, sender));
    let response = tokio::select! {
        biased;
        response = &mut answer => {
            place.upload = Some(finish_later(upload));
            response
        }
        sent = &mut upload => {
            sent.map_err(SendError::Body)?;
            answer.await
        }
    };
    Ok(place.answered(response.map_err(classify)?))
}

fn finish_later(
    upload: Pin<Box<impl Future<Output = Result<(), BoxError>> + Send + 'static>>,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        // The stream is reset when the body fails, and the reader of the answer sees that.
        let _ = upload.await;
    }))
}

/// Sends a body that is all there; where the answer is to come from.
fn send_whole(opened: Opened) -> (Stream, ResponseFuture) {
    let Opened { place, answer, mut sender, mut body } = opened;
    // Where this fails the stream was reset, and the answer says why.
    let _ = send_chunks(&mut body, &mut sender);
    (place, answer)
}

fn send_chunks(body: &mut Outgoing, sender: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    while let Some(chunk) = body.whole.pop() {
        sender.send_data(chunk, body.whole.is_empty())?;
    }
    match body.whole.pop_trailers() {
        Some(trailers) => sender.send_trailers(trailers),
        None => Ok(()),
    }
}

/// Sends a body as the server makes room for it; fails only when the body does. That the server wants no more of it is
/// no failure: it may have answered already, and the answer tells.
async fn pump(mut body: Outgoing, mut sender: SendStream<Bytes>) -> Result<(), BoxError> {
    loop {
        let frame = tokio::select! {
            biased;
            _ = poll_fn(|context| sender.poll_reset(context)) => return Ok(()),
            frame = body.frame() => frame,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                sender.send_reset(Reason::CANCEL);
                return Err(error);
            }
            None => {
                let _ = sender.send_data(Bytes::new(), true);
                return Ok(());
            }
        };
        let (sent, last) = match frame.into_data() {
            Ok(data) => {
                let last = body.is_end_stream();
                (send_chunk(data, last, &mut sender).await, last)
            }
            Err(frame) => (sender.send_trailers(frame.into_trailers().unwrap_or_default()), true),
        };
        if last || sent.is_err() {
            return Ok(());
        }
    }
}

async fn send_chunk(mut data: Bytes, last: bool, sender: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    if data.is_empty() {
        return if last { sender.send_data(data, true) } else { Ok(()) };
    }
    while !data.is_empty() {
        sender.reserve_capacity(data.len());
        let room = match poll_fn(|context| sender.poll_capacity(context)).await {
            Some(room) => room?.min(data.len()),
            None => return Err(Reason::STREAM_CLOSED.into()),
        };
        if room > 0 {
            let chunk = data.split_to(room);
            let ends = last && data.is_empty();
            sender.send_data(chunk, ends)?;
        }
    }
    Ok(())
}
