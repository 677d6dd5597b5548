//! What passes between the mesh and clients outside it.

use fairmesh_calls::{Body, forwarding::hide_load_trailers};
use fairmesh_headers::{CLAIMS, is_spelling_of, remove_all_spellings};
use http::{HeaderMap, Response};

/// Fields of responses that name servers or show their load, the one that is shown on request last.
const INTERNAL: [&str; 4] =
    ["endpoint-load-metrics", "endpoint-load-metrics-bin", "x-fairmesh-full", "x-fairmesh-decision"];

/// The border at a listener whose clients are no programs of the mesh: they state no caller, and learn neither the load nor the names of
/// servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Whether clients that ask with `x-fairmesh-explain` learn which servers were tried.
    pub explains: bool,
}

impl Boundary {
    /// Fields of responses that are not forwarded.
    pub(crate) fn hidden_fields(self) -> &'static [&'static str] {
        let shown = usize::from(self.explains);
        &INTERNAL[..INTERNAL.len() - shown]
    }

    /// Whether a field of a request claims an identity; its name may be in any case.
    pub(crate) fn is_claim(name: &str) -> bool {
        CLAIMS.iter().any(|claim| is_spelling_of(name, claim))
    }

    /// Removes the claims of a client, from headers or trailers.
    pub(crate) fn remove_claims(headers: &mut HeaderMap) {
        remove_all_spellings(headers, &CLAIMS);
    }

    /// Removes what is internal to the mesh from headers, and the load from trailers too.
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
    fn hidden_fields_are_those_of_the_protocol() {
        assert_eq!([LOAD, LOAD_BIN, OVERLOADED_SERVER, DECISION], INTERNAL);
    }

    #[test]
    fn clients_outside_learn_no_servers_unless_told() {
        assert_eq!(left(Boundary { explains: false }), ["server", "x-fairmesh-attempts"]);
        let explained = ["server", "x-fairmesh-attempts", "x-fairmesh-decision"];
        assert_eq!(left(Boundary { explains: true }), explained);
    }

    #[test]
    fn claims_are_known_in_every_spelling() {
        for claim in ["X-Forwarded-Client-Cert", "x_fairmesh_caller", "X-FAIRMESH_CALLER"] {
            assert!(Boundary::is_claim(claim), "{claim}");
        }
        assert!(!Boundary::is_claim("x-forwarded-for") && !Boundary::is_claim("x-fairmesh-key"));
    }
}
