use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use fairmesh_identity::write_bundle_document;
use fairmesh_model::RecordKey;
use fairmesh_rib::Node;

use super::recorded_bundle;

/// A new control plane serves pages a moment before it has recorded its roots.
const NOT_RECORDED: &str =
    "no trust bundle is recorded: the mesh has no trust domain, or its control plane has just started\n";

/// The route `GET /v1/trust-bundle`: the SPIFFE bundle endpoint, for other trust domains. What it shows is public.
pub(crate) fn router(node: Node) -> Router {
    Router::new().route("/v1/trust-bundle", get(read)).with_state(node)
}

async fn read(State(node): State<Node>) -> Response {
    let sequence = node.get(&RecordKey::TrustBundle.to_string()).map_or(0, |entry| entry.revision);
    match recorded_bundle(&node).map(|bundle| write_bundle_document(&bundle, sequence)) {
        Some(Ok(document)) => ([(header::CONTENT_TYPE, "application/json")], document).into_response(),
        Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        None => (StatusCode::NOT_FOUND, NOT_RECORDED).into_response(),
    }
}
