use std::{
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_connections::{H1Body, H2Body};
use fairmesh_http::BoxError;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::Instant;

/// The source of a body's bytes.
pub(super) enum BodySource {
    /// A buffer in memory.
    Full(Option<Bytes>),
    H1(H1Body),
    H2(H2Body),
    /// A body from another library. In a mutex, so that bodies are `Sync` as HTTP libraries demand; polling does not
    /// lock it.
    Foreign(Mutex<UnsyncBoxBody<Bytes, BoxError>>),
}

impl BodySource {
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::H1(body) => body.is_end_stream(),
            Self::H2(body) => body.is_end_stream(),
            Self::Foreign(body) => lock(body).is_end_stream(),
        }
    }

    /// Time at which the request last progressed, if the rest of it is still being sent.
    pub(super) fn last_moved(&self) -> Option<Instant> {
        match self {
            Self::H1(body) => body.last_moved(),
            Self::H2(body) => body.last_moved(),
            Self::Full(_) | Self::Foreign(_) => None,
        }
    }

    pub(super) fn is_switched(&self) -> bool {
        matches!(self, Self::H1(body) if body.is_switched())
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::H1(body) => Pin::new(body).poll_frame(context),
            Self::H2(body) => Pin::new(body).poll_frame(context),
            Self::Foreign(body) => {
                Pin::new(body.get_mut().unwrap_or_else(PoisonError::into_inner)).poll_frame(context)
            }
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::H1(body) => body.size_hint(),
            Self::H2(_) => SizeHint::new(),
            Self::Foreign(body) => lock(body).size_hint(),
        }
    }

    /// The kind of source, for debugging.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Full(_) => "full",
            Self::H1(_) => "http/1.1",
            Self::H2(_) => "http/2",
            Self::Foreign(_) => "foreign",
        }
    }
}

fn lock(body: &Mutex<UnsyncBoxBody<Bytes, BoxError>>) -> MutexGuard<'_, UnsyncBoxBody<Bytes, BoxError>> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}
