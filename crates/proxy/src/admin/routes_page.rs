//! The page `/services/TENANT/NAME/routes`: the policy by which this proxy routes calls of a service.

use axum::{
    Json,
    extract::{self, Path},
    response::{IntoResponse, Response},
};
use fairmesh_calls::{ServiceName, discovery::ServiceState, forwarding::service_state};
use fairmesh_model::spec::PolicySpec;
use http::StatusCode;
use serde::Serialize;

use crate::admin::state::AdminState;

/// The policy in force, as `apply` reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RoutesPage {
    service: String,
    /// Revision of the records; 0 if they were read from disk.
    revision: u64,
    policy: PolicySpec,
}

/// Serves the page.
pub(super) async fn routes(
    extract::State(state): extract::State<AdminState>,
    Path((tenant, name)): Path<(String, String)>,
) -> Response {
    let name = ServiceName::new(format!("{tenant}/{name}")).ok();
    let known = name.and_then(|name| Some((state.services.known(&name)?, name)));
    let Some((target, name)) = known else {
        let message = "this service was not called through this proxy; /services lists those that were\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    match &*service_state(&target.handle) {
        ServiceState::Ready(ready) => {
            let policy = PolicySpec::of(&name, &ready.read_policy().unwrap_or_default());
            Json(RoutesPage { service: name.to_string(), revision: ready.revision, policy }).into_response()
        }
        _ => (StatusCode::NOT_FOUND, "the records of this service are not known yet\n").into_response(),
    }
}
