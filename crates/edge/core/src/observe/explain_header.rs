//! Response headers that explain the routing of a request, if the client asked for them.

use std::fmt::Write as _;

use fairmesh_calls::{ServiceName, observe::AttemptRecord};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Request header: `true` asks for [`DECISION`] and [`ATTEMPTS`] in the response. Not forwarded.
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-fairmesh-explain");
/// Response header: the service, and each attempt with its endpoint, address, region, duration and outcome.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-fairmesh-decision");

/// Response header: the number of attempts, including hedged ones, like Envoy's `x-envoy-attempt-count`.
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("x-fairmesh-attempts");

/// Removes [`EXPLAIN`] from a request, and returns whether it was set.
pub(crate) fn take_request(headers: &mut HeaderMap) -> bool {
    // Checked before removal, which always hashes the name.
    headers.keys().any(|name| *name == EXPLAIN)
        && headers.remove(EXPLAIN).is_some_and(|value| value == "true")
}

/// Adds both headers to a response.
pub(crate) fn write(
    service: &ServiceName,
    tried_endpoints: &[AttemptRecord],
    attempts: usize,
    headers: &mut HeaderMap,
) {
    headers.insert(ATTEMPTS, attempts.into());
    let mut text = service.to_string();
    for tried in tried_endpoints {
        let target = &tried.endpoint;
        let outcome = match &tried.outcome {
            Ok(status) => status.as_u16().to_string(),
            // The separator of attempts must not occur in messages.
            Err(problem) => problem.replace(';', ",").chars().filter(|c| matches!(c, ' '..='~')).collect(),
        };
        let ms = tried.took.as_secs_f64() * 1e3;
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            "; {} {} {} {ms:.1}ms {outcome}",
            target.instance, target.address, target.location.region
        );
    }
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(DECISION, value);
    }
}
