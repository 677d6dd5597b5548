use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;

use super::shared_connection::StreamPermit;
use crate::{abort_on_drop::AbortOnDrop, attempt_waits::UploadActivity, request_body::RequestBody};
use fairmesh_http::{
    BoxError,
    h2::{ResponseBody as H2Body, Upload},
};

/// The body of an HTTP/2 response.
pub struct ResponseBody {
    body: H2Body,
    /// Sends the rest of the request while the response is read, for bidirectional streams.
    upload: Option<(AbortOnDrop, Arc<UploadActivity>)>,
    _stream: StreamPermit,
}

impl ResponseBody {
    pub(super) fn new(body: H2Body, upload: Option<Upload<RequestBody>>, stream: StreamPermit) -> Self {
        let upload = upload.map(|upload| {
            let activity = Arc::new(UploadActivity::new());
            let sending = tokio::spawn(send(upload, Arc::clone(&activity)));
            (AbortOnDrop(sending), activity)
        });
        Self { body, upload, _stream: stream }
    }

    /// Time of the last progress of the request, if it is sent while the response is read.
    pub fn last_moved(&self) -> Option<Instant> {
        self.upload.as_ref().map(|(_, activity)| activity.last())
    }
}

/// Sends the rest of a request.
async fn send(mut upload: Upload<RequestBody>, activity: Arc<UploadActivity>) {
    poll_fn(|context| {
        let before = upload.sending();
        let sent = Pin::new(&mut upload).poll(context);
        if upload.sending() != before {
            activity.record();
        }
        sent
    })
    .await;
}

impl Body for ResponseBody {
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
