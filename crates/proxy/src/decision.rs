//! Why a request went where it went and how many attempts that took, for clients that ask with the request.

use std::fmt::Write as _;

use fairmesh_client::{ServiceName, observe::AttemptRecord};
use http::{HeaderMap, HeaderName, HeaderValue};

/// In a request: `true` asks for [`DECISION`] and [`ATTEMPTS`] in the response. It is not passed on.
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-fairmesh-explain");
/// In an answer: the service, and each try with its endpoint, address, region, time and outcome.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-fairmesh-decision");

/// In a response: how many attempts were made, hedged ones included. Envoy has it as `x-envoy-attempt-count`.
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("x-fairmesh-attempts");

/// Takes the wish to be told from a request.
pub(crate) fn asked(headers: &mut HeaderMap) -> bool {
    // Looked for first: removing takes a hash even where there is nothing.
    headers.keys().any(|name| *name == EXPLAIN)
        && headers.remove(EXPLAIN).is_some_and(|value| value == "true")
}

/// Writes both into a response, after so many attempts.
pub(crate) fn tell(service: &ServiceName, tries: &[AttemptRecord], attempts: usize, headers: &mut HeaderMap) {
    headers.insert(ATTEMPTS, attempts.into());
    let mut words = service.to_string();
    for tried in tries {
        let target = &tried.endpoint;
        let outcome = match &tried.outcome {
            Ok(status) => status.as_u16().to_string(),
            // What divides tries divides no words.
            Err(problem) => problem.replace(';', ",").chars().filter(|c| matches!(c, ' '..='~')).collect(),
        };
        let ms = tried.took.as_secs_f64() * 1e3;
        // Writing to a string cannot fail.
        let _ = write!(
            words,
            "; {} {} {} {ms:.1}ms {outcome}",
            target.instance, target.address, target.location.region
        );
    }
    if let Ok(value) = HeaderValue::try_from(words) {
        headers.insert(DECISION, value);
    }
}
