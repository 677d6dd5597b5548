//! Headers that clients and servers exchange: call options, deadlines, load reports, trace context, gRPC.
//!
//! One crate serves both sides, so that each header is read and written by the same code.
//!
//! Decision: plain functions over `http::HeaderMap`. Typed headers as in the `headers` crate were rejected: they
//! allocate, and each lookup costs a hash.

mod deadline;
mod grpc;
mod header_view;
mod load_report;
#[cfg(test)]
mod orca;
mod traceparent;

use fairmesh_model::Probe;
use http::{HeaderMap, HeaderName, Method, Request, header};

pub use deadline::{Deadline, encode_grpc_timeout, grpc_timeout, read_deadline, write_deadline};
pub use fairmesh_router::LoadReport;
pub use grpc::{CallerProtocol, WEB_TEXT, is_event_stream, is_grpc_web};
pub use grpc::{grpc_content_type, is_grpc, is_server_error};
pub use header_view::{AllSpellings, HeaderMapView};
pub use load_report::{MAX_METRIC, decode_base64, decode_binary_report};
pub use load_report::{load_from_binary, load_from_text, metrics_from_binary, metrics_from_text};
pub use traceparent::{SpanContext, TRACEPARENT, TRACESTATE};

/// Key of a call to a sharded service: decimal, or hexadecimal after `0x`.
pub const KEY: HeaderName = HeaderName::from_static("x-fairmesh-key");
/// The caller on whose behalf an intermediary calls, a SPIFFE ID. Trusted only from intermediaries that the policy
/// names.
pub const CALLER: HeaderName = HeaderName::from_static("x-fairmesh-caller");
/// The first service in the chain of calls, `tenant/service`, if it differs from the caller. Servers attribute their
/// CPU time to it.
pub const ORIGIN: HeaderName = HeaderName::from_static("x-fairmesh-origin");
/// Headers that state the caller to servers, and on whose behalf it calls.
pub const CLAIMS: [HeaderName; 3] = [CALLER, HeaderName::from_static("x-forwarded-client-cert"), ORIGIN];
/// The role that a replica must have, such as `primary`.
pub const ROLE: HeaderName = HeaderName::from_static("x-fairmesh-role");
/// The time left for the call, in whole milliseconds. It is relative, since the clocks of two machines differ.
pub const DEADLINE: HeaderName = HeaderName::from_static("x-fairmesh-deadline");
/// `true` declares that the call may be repeated.
pub const IDEMPOTENT: HeaderName = HeaderName::from_static("x-fairmesh-idempotent");
/// The deadline of a gRPC call: up to eight digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The status of a gRPC call. It is in the headers if the response has no body.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// In a response with 421 or `FAILED_PRECONDITION`: the server does not hold the shard. The value is the version of the
/// server's shard map, in decimal.
pub const WRONG_SHARD: HeaderName = HeaderName::from_static("fairmesh-wrong-shard");
/// The fault of a response made by Fairmesh itself: the fault's stable name, or `injected` for an injected fault.
pub const FAULT: HeaderName = HeaderName::from_static("x-fairmesh-fault");
/// Value of [`FAULT`] from the server layer: the concurrency limit was reached and the call was not started, so it can
/// be sent to another server.
pub const OVERLOADED: &str = "overloaded";
/// In a response with [`OVERLOADED`]: the server that refused the call, `SERVICE/INSTANCE`. If another server's
/// response is forwarded with this header, the name differs from the called server, which has processed the call.
pub const OVERLOADED_SERVER: HeaderName = HeaderName::from_static("x-fairmesh-full");
/// Value of [`FAULT`] from the server layer: the caller's deadline passed while the server processed the call.
pub const DEADLINE_EXCEEDED: &str = "deadline";
/// Value of [`FAULT`] from the server layer: the policy of the service does not allow the call.
pub const UNAUTHORIZED: &str = "unauthorized";
/// Identities of the proxies that forwarded a request, one per field, as in `CDN-Loop` (RFC 8586). A proxy that finds
/// its own identity too often breaks the loop.
pub const LOOP: &str = "x-fairmesh-loop";
/// The load report in text form: `TEXT cpu_utilization=0.3,named_metrics.concurrent_requests=4` (ORCA). For HTTP
/// responses.
pub const LOAD: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// The load report as a base64 `xds.data.orca.v3.OrcaLoadReport`. A trailer of gRPC responses.
pub const LOAD_BIN: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Path of load polls. The server layer responds to `GET`, over HTTP/1.1 or HTTP/2, with status 204 and the header
/// `endpoint-load-metrics`, regardless of the service's protocol.
pub const LOAD_PATH: &str = "/.well-known/fairmesh/load";

/// In a load poll of a proxy: a digest of its machine and network namespace. The listener in front of a program in the same
/// place then says by [`LOCAL_SERVER`] whether the kernel may carry the requests of the proxy's callers. Other servers take it
/// for a load poll.
pub const LOCAL_HOST: HeaderName = HeaderName::from_static("x-fairmesh-local-host");
/// In the response to a load poll with [`LOCAL_HOST`]: the address of the program, in plaintext.
pub const LOCAL_SERVER: HeaderName = HeaderName::from_static("x-fairmesh-local-server");

/// Whether a request asks only for the load, by [`LOAD_PATH`]. It is no call of the service.
pub fn is_load_poll<B>(request: &Request<B>) -> bool {
    request.uri().path() == LOAD_PATH && request.method() == Method::GET
}

/// Whether a request asks whether the kernel may carry requests within the machine, by [`LOCAL_HOST`].
pub fn asks_for_local<B>(request: &Request<B>) -> bool {
    is_load_poll(request) && request.headers().contains_key(LOCAL_HOST)
}

/// Whether a request times a round trip for an agent: `OPTIONS *`, which is about the server and no resource of it
/// (RFC 9110 9.3.7). The server layer and listeners in front of programs respond, since it is no call of the service: it
/// would appear as a failed call of most programs, and as a refused one of those with authorization rules.
pub fn is_distance_probe<B>(request: &Request<B>) -> bool {
    request.uri().path() == "*"
        && request.method() == Method::OPTIONS
        && request.headers().get(header::USER_AGENT).is_some_and(|agent| agent == Probe::USER_AGENT)
}

/// Named metric of a load report: requests in flight, excluding the request whose response carries the report.
pub const OUTSTANDING: &str = "concurrent_requests";

/// Named metric of a load report: long-lived streams (Uber, assisted balancing); absent if there are none.
pub const STREAMS: &str = "concurrent_streams";

/// Whether any header sets an option of the call. One pass checks all headers, since most calls have no options and
/// each lookup would cost a hash.
pub fn has_call_options(headers: &http::HeaderMap) -> bool {
    let is_option = |name: &str| is_mesh_header(name) || name == GRPC_TIMEOUT;
    headers.keys().any(|name| is_option(name.as_str()))
}

/// Removes all fields with one of these names, in every spelling that programs read as that name: gateway interfaces
/// replace `-`, and some every other special character, by `_` (RFC 3875 4.1.18).
pub fn remove_all_spellings(headers: &mut HeaderMap, names: &[HeaderName]) {
    let is_named = |spelling: &HeaderName| names.iter().any(|name| is_spelling_of(spelling.as_str(), name));
    let found: Vec<_> = headers.keys().filter(|spelling| is_named(spelling)).cloned().collect();
    for spelling in found {
        headers.remove(spelling);
    }
}

/// Returns the headers that conditions of rules may name, without credentials, for a request that is authorized again
/// later.
pub fn without_credentials(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    kept.remove(header::AUTHORIZATION);
    kept
}

/// Whether a program may read `spelling`, in any case, as `name`.
pub fn is_spelling_of(spelling: &str, name: &HeaderName) -> bool {
    let (spelling, name) = (spelling.as_bytes(), name.as_str().as_bytes());
    let mut pairs = spelling.iter().zip(name);
    spelling.len() == name.len()
        && pairs.all(|(one, other)| {
            one.eq_ignore_ascii_case(other) || (*other == b'-' && !one.is_ascii_alphanumeric())
        })
}

/// Whether a header name, in any case, is reserved for options of the mesh. A request with such a header is not
/// forwarded from its read buffer. The loop detection header is not an option.
#[inline]
pub fn is_mesh_header(name: &str) -> bool {
    const PREFIX: &str = "x-fairmesh-";
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        && !name.eq_ignore_ascii_case(LOOP)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn header_is_removed_in_every_spelling_of_its_name() {
        let mut headers = HeaderMap::new();
        let spellings = ["x-fairmesh-caller", "x_fairmesh_caller", "x-fairmesh_caller", "x.fairmesh-caller"];
        let others = ["x-fairmesh-callers", "x-fairmesh-key", "xafairmesh-caller", "x_other"];
        for name in spellings.into_iter().chain(others) {
            headers.append(name, HeaderValue::from_static("1"));
        }
        headers.append(spellings[1], HeaderValue::from_static("2"));
        remove_all_spellings(&mut headers, &[CALLER]);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-fairmesh-callers", "x-fairmesh-key", "x_other", "xafairmesh-caller"]);
    }
}
