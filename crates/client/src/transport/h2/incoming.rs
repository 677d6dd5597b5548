//! Bodies of answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio_util::task::AbortOnDropHandle;

use super::{Outgoing, Place};
use crate::{
    BoxError,
    http2::{AnswerBody, Upload},
};

/// The body of an answer over HTTP/2.
pub(crate) struct Incoming {
    body: AnswerBody,
    /// What still says the request while the answer is read, as two-way streams do.
    _upload: Option<AbortOnDropHandle<()>>,
    _place: Place,
}

impl Incoming {
    pub(super) fn new(body: AnswerBody, upload: Option<Upload<Outgoing>>, place: Place) -> Self {
        let upload = upload.map(|upload| AbortOnDropHandle::new(tokio::spawn(upload)));
        Self { body, _upload: upload, _place: place }
    }
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
