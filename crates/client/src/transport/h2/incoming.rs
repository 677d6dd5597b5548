//! Bodies of answers.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Outgoing, Place, wait::Movement};
use crate::BoxError;
use fairmesh_http::h2::{ResponseBody, Upload};

/// The body of an answer over HTTP/2.
pub(crate) struct Incoming {
    body: ResponseBody,
    /// What still says the request while the answer is read, as two-way streams do.
    upload: Option<(AbortOnDropHandle<()>, Arc<Movement>)>,
    _place: Place,
}

impl Incoming {
    pub(super) fn new(body: ResponseBody, upload: Option<Upload<Outgoing>>, place: Place) -> Self {
        let upload = upload.map(|upload| {
            let movement = Arc::new(Movement::new());
            let sending = tokio::spawn(send(upload, Arc::clone(&movement)));
            (AbortOnDropHandle::new(sending), movement)
        });
        Self { body, upload, _place: place }
    }

    /// When the rest of the request last moved, where it is sent while the answer is read.
    pub(crate) fn last_moved(&self) -> Option<Instant> {
        self.upload.as_ref().map(|(_, movement)| movement.last())
    }
}

/// Sends the rest of a request.
async fn send(mut upload: Upload<Outgoing>, movement: Arc<Movement>) {
    poll_fn(|context| {
        let before = upload.sending();
        let sent = Pin::new(&mut upload).poll(context);
        if upload.sending() != before {
            movement.moved();
        }
        sent
    })
    .await;
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
