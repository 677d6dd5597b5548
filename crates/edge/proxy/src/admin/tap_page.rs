//! The page `/tap`: requests of a service as they complete, one JSON line each.

use axum::{
    body::Body,
    extract::{self, Query, rejection::QueryRejection},
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fairmesh_edge::observe::tap::{TapFilter, TapReader};
use futures_util::stream;
use http::StatusCode;

use crate::admin::state::AdminState;

/// Streams requests until the reader disconnects.
pub(super) async fn tap(
    extract::State(state): extract::State<AdminState>,
    filter: Result<Query<TapFilter>, QueryRejection>,
) -> Response {
    let filter = match filter {
        Ok(Query(filter)) => filter,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let Some(reader) = state.observer.taps.start(filter) else {
        let message = "too many taps read from this proxy; end one of them\n";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    let lines = stream::unfold(reader, |mut reader: TapReader| async {
        let line = reader.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(line), reader))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}
