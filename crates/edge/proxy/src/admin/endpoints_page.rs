//! The page `/services/TENANT/NAME/endpoints`: endpoints as this proxy sees them.

use axum::{
    Json,
    extract::{self, Path},
    response::{IntoResponse, Response},
};
use fairmesh_calls::{ServiceName, observe::EndpointStatus};
use http::StatusCode;
use serde::Serialize;

use crate::admin::state::AdminState;

/// A row of the page: one endpoint.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointRow {
    instance: String,
    address: String,
    region: String,
    zone: Option<String>,
    /// `starting`, `serving`, `draining`, `lost`, `unhealthy` or `ejected`.
    state: &'static str,
    /// The component that decided on `unhealthy` or `ejected`, and its reason.
    reason: Option<String>,
    /// Seconds since the ejection began, and until it ends.
    ejected_seconds: Option<f64>,
    returns_in_seconds: Option<f64>,
    /// When health checks found the endpoint unhealthy, in milliseconds since 1970.
    unhealthy_since_ms: Option<u64>,
    nearest: bool,
    in_subset: bool,
    power: u32,
    in_flight: u32,
    streams: u32,
    consecutive_failures: u32,
}

impl From<EndpointStatus> for EndpointRow {
    fn from(one: EndpointStatus) -> Self {
        let state = one.state();
        let EndpointStatus { target, nearest, in_subset, ejection, verdict, .. } = one;
        let verdict = verdict.filter(|_| state == "unhealthy");
        let region = &target.location.region;
        let reason = match (state, &verdict) {
            ("ejected", _) => {
                Some(format!("this proxy, after {} consecutive failures", one.consecutive_failures))
            }
            ("refused", _) => Some("plaintext endpoint in a strict mesh".into()),
            (_, Some(verdict)) => Some(format!("health checks of {region}: {}", verdict.cause)),
            _ => None,
        };
        let ejection = ejection.filter(|_| state == "ejected");
        Self {
            instance: target.instance.to_string(),
            address: target.address.to_string(),
            region: region.to_string(),
            zone: target.location.zone.as_ref().map(ToString::to_string),
            state,
            reason,
            ejected_seconds: ejection.map(|ejection| ejection.age.as_secs_f64()),
            returns_in_seconds: ejection.map(|ejection| ejection.remaining.as_secs_f64()),
            unhealthy_since_ms: verdict.map(|verdict| verdict.since_ms),
            nearest,
            in_subset,
            power: target.power,
            in_flight: one.outstanding,
            streams: one.streams,
            consecutive_failures: one.consecutive_failures,
        }
    }
}

/// Serves the page.
pub(super) async fn endpoints(
    extract::State(state): extract::State<AdminState>,
    Path((tenant, name)): Path<(String, String)>,
) -> Response {
    let name = ServiceName::new(format!("{tenant}/{name}")).ok();
    let Some(handle) = name.and_then(|name| state.services.handle_of(&name)) else {
        let message = "this service was not called through this proxy; /services lists those that were\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    let mut rows: Vec<_> = handle.endpoint_status().into_iter().map(EndpointRow::from).collect();
    rows.sort_by(|a, b| a.instance.cmp(&b.instance));
    Json(rows).into_response()
}
