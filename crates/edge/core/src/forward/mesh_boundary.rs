//! Removes headers and trailers that must not cross the border of the mesh: identity claims of clients, and
//! server names and load in responses.

use fairmesh_calls::{Body, forwarding::hide_load_trailers};
use fairmesh_headers::{CLAIMS, is_spelling_of, remove_all_spellings};
use http::{HeaderMap, Response};

/// Response headers that name servers or show their load. The last one is shown on request.
const INTERNAL: [&str; 4] =
    ["endpoint-load-metrics", "endpoint-load-metrics-bin", "x-fairmesh-full", "x-fairmesh-decision"];

/// Border of the mesh, at a listener for clients outside the mesh. Such clients cannot state a caller, and see
/// neither names nor load of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Whether responses to clients that send `x-fairmesh-explain` name the servers that were tried.
    pub explains: bool,
}

impl Boundary {
    /// Response headers that are not forwarded.
    pub(crate) fn hidden_fields(self) -> &'static [&'static str] {
        let shown = usize::from(self.explains);
        &INTERNAL[..INTERNAL.len() - shown]
    }

    /// Whether a request header of this name claims an identity. The name may be in any case.
    pub(crate) fn is_claim(name: &str) -> bool {
        CLAIMS.iter().any(|claim| is_spelling_of(name, claim))
    }

    /// Removes identity claims of a client from headers or trailers.
    pub(crate) fn remove_claims(headers: &mut HeaderMap) {
        remove_all_spellings(headers, &CLAIMS);
    }

    /// Removes mesh-internal headers from a response, and the load from its trailers.
    pub(crate) fn strip_response(self, response: &mut Response<Body>) {
        for name in self.hidden_fields() {
            response.headers_mut().remove(*name);
        }
        hide_load_trailers(response.body_mut());
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_headers::{LOAD, LOAD_BIN, OVERLOADED_SERVER};
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::observe::explain_header::DECISION;

    fn left(boundary: Boundary) -> Vec<String> {
        let mut response = Response::new(Body::empty());
        for name in INTERNAL.into_iter().chain(["x-fairmesh-attempts", "server"]) {
            let name = HeaderName::from_static(name);
            response.headers_mut().insert(name, HeaderValue::from_static("1"));
        }
        boundary.strip_response(&mut response);
        let mut left: Vec<_> = response.headers().keys().map(ToString::to_string).collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn mesh_boundary_hides_every_internal_header() {
        assert_eq!([LOAD, LOAD_BIN, OVERLOADED_SERVER, DECISION], INTERNAL);
    }

    #[test]
    fn outside_clients_see_no_internal_headers_except_decision_if_enabled() {
        assert_eq!(left(Boundary { explains: false }), ["server", "x-fairmesh-attempts"]);
        let explained = ["server", "x-fairmesh-attempts", "x-fairmesh-decision"];
        assert_eq!(left(Boundary { explains: true }), explained);
    }

    #[test]
    fn headers_claiming_identity_are_detected_in_every_spelling() {
        for claim in ["X-Forwarded-Client-Cert", "x_fairmesh_caller", "X-FAIRMESH_CALLER"] {
            assert!(Boundary::is_claim(claim), "{claim}");
        }
        assert!(!Boundary::is_claim("x-forwarded-for") && !Boundary::is_claim("x-fairmesh-key"));
    }
}
