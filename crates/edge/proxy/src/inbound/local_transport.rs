//! Says to the proxy of a caller on the same machine whether the kernel may carry its requests, and where to. The answer holds
//! for a moment, in which the proxy asks again: so it ends with the connection, with the certificates of both sides, with the
//! rules, and with this process. Both fronts of programs answer here, `register` and `proxy --inbound`.
//!
//! The answer names an address and no more: that proxy has the kernel say whose program listens there.

use std::{fmt, net::SocketAddr};

use fairmesh_calls::Body;
use fairmesh_edge::forward::error_response;
use fairmesh_headers::{LOCAL_HOST, LOCAL_SERVER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::{
    inbound::{caller_headers, peer::Peer},
    local_host::local_host,
};

/// Why all requests have to pass the front, whatever the policy allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NeedsFront {
    #[error("the program does not speak HTTP/1.1, to which the proxy in front of it translates")]
    Protocol,
    #[error("the proxy in front of the program limits concurrent requests")]
    Concurrency,
    #[error("the proxy in front of the program limits the bytes of bodies")]
    Bodies,
    #[error("the endpoint drains")]
    Drains,
}

/// The response to a request that [asks for this](fairmesh_headers::asks_for_local): the address of the program, and the
/// headers that name the peer to it; or the reason why the peer has to send its requests here. `decided` is what the policy of
/// the service says of the peer's requests.
pub(crate) fn respond(
    (peer, headers): (&Peer, &HeaderMap),
    decided: Result<(), impl fmt::Display>,
    program: Result<SocketAddr, NeedsFront>,
) -> Response<Body> {
    let refused = |reason: &str| error_response::plain_text(StatusCode::FORBIDDEN, format!("{reason}\n"));
    if !local_host().is_ok_and(|own| is_from(headers, &own)) {
        return refused("the proxy is on another machine, or in another network namespace");
    }
    if let Err(reason) = decided {
        return refused(&reason.to_string());
    }
    let program = match program {
        Ok(program) => program,
        Err(reason) => return refused(&reason.to_string()),
    };
    let Ok(server) = HeaderValue::try_from(program.to_string()) else {
        return refused("the program has no address");
    };
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    caller_headers::set_identity(headers, peer.caller.as_ref(), peer.certificate.as_ref());
    headers.insert(LOCAL_SERVER, server);
    response
}

/// Whether the question comes from the machine and network namespace with this digest.
fn is_from(headers: &HeaderMap, own: &str) -> bool {
    let mut hosts = headers.get_all(LOCAL_HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(asked), None) => asked.as_bytes() == own.as_bytes(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_comes_from_here_only_with_one_equal_digest() {
        let own = local_host().unwrap();
        assert!(own.len() == 64 && own == local_host().unwrap(), "{own}");
        let from = |digests: &[&str]| {
            let mut headers = HeaderMap::new();
            for digest in digests {
                headers.append(LOCAL_HOST, HeaderValue::from_str(digest).unwrap());
            }
            is_from(&headers, &own)
        };
        assert!(from(&[&own]));
        let other = own.replace(|digit: char| digit.is_ascii_digit(), "f");
        for digests in [&[][..], &[&*other], &[&*own, &*own], &[&*own, &*other], &[""], &[&own[..63]]] {
            assert!(!from(digests), "{digests:?}");
        }
    }
}
