//! Protects the page and its reader against other pages in the browser.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fairmesh_pages::HostNames;

/// Allows only scripts, styles and connections of this origin, and nothing inline. Names of callers thus cannot
/// become scripts, and the page fetches nothing from elsewhere.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
static HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Refuses requests for other hosts, of programs too, and adds the headers to responses.
pub(crate) async fn guard(State(names): State<Arc<HostNames>>, request: Request, next: Next) -> Response {
    let mut response = if names.admit(&request) { next.run(request).await } else { misdirected() };
    for (name, value) in &HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn misdirected() -> Response {
    let text = "this name is not one of the control plane; open the page by IP address or localhost, or start the control \
                plane with --admin-name NAME\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}
