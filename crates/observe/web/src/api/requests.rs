//! Requests of a service as proxies see them.

use axum::{
    extract::{Path, State},
    http::Extensions,
    response::Response,
};

use super::{Served, invalid, named, stream};

/// Streams the last requests of a service with their decisions, and requests as they complete.
pub(super) async fn live(
    State(served): State<Served>,
    Path(path): Path<(String, String)>,
    asker: Extensions,
) -> Response {
    let name = match named(path) {
        Ok(name) => name,
        Err(error) => return invalid(error),
    };
    let (of, key) = (name.clone(), (1, name.to_string()));
    let last = served.part("lastRequests", key.clone(), move |served| served.proxy_requests.last(&of));
    let live = served.part("liveRequests", key, move |served| served.proxy_requests.live(&name));
    stream(&served, asker, vec![last, live])
}
