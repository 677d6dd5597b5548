//! The headers that callers and servers exchange, and the load report that travels in one of them.
//!
//! One module for both sides, so that what one writes is what the other reads.

mod deadline;
mod grpc;
mod load;
#[doc(hidden)]
pub mod orca;
mod traceparent;

use http::HeaderName;

pub use deadline::{Deadline, encode_grpc_timeout, grpc_timeout, read_deadline, write_deadline};
pub use fairmesh_router::LoadReport;
pub use grpc::{Caller, WEB_TEXT, is_event_stream, is_grpc_web};
pub use grpc::{grpc_kind, has_erred, is_grpc};
pub use load::{MOST_OF_METRIC, decode_base64, message_of_binary};
pub use load::{load_from_binary, load_from_text};
pub use traceparent::{SpanContext, TRACEPARENT, TRACESTATE};

/// The key of a call to a sharded service: decimal, or hexadecimal after `0x`.
pub const KEY: HeaderName = HeaderName::from_static("x-fairmesh-key");
/// The role that a replica must have, such as `primary`.
pub const ROLE: HeaderName = HeaderName::from_static("x-fairmesh-role");
/// The time that is left for the call, in whole milliseconds. Relative, since clocks of two machines differ.
pub const DEADLINE: HeaderName = HeaderName::from_static("x-fairmesh-deadline");
/// `true` declares that repeating this call does no harm.
pub const IDEMPOTENT: HeaderName = HeaderName::from_static("x-fairmesh-idempotent");
/// The deadline of a gRPC call, as the gRPC protocol writes it: up to eight digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The status of a gRPC call; among the headers when the answer has no body.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// In an answer 421 or `FAILED_PRECONDITION`: the server does not hold the shard. The value is the version of the map
/// that it knows, decimal.
pub const WRONG_SHARD: HeaderName = HeaderName::from_static("fairmesh-wrong-shard");
/// Says, in answers that Fairmesh made itself, what went wrong: the stable name of the fault, or `injected` for a failure on
/// purpose.
pub const FAULT: HeaderName = HeaderName::from_static("x-fairmesh-fault");
/// In [`FAULT`], said by the server layer: it has as many calls as it takes at a time and has not looked at this one, so that
/// it can be sent elsewhere without harm.
pub const OVERLOADED: &str = "overloaded";
/// In an answer with [`OVERLOADED`]: which server that is, `SERVICE/INSTANCE`. Whoever hands on the headers of an answer that it got
/// itself names another one, and has carried out the call.
pub const FULL: HeaderName = HeaderName::from_static("x-fairmesh-full");
/// In [`FAULT`], said by the server layer: the time that the caller gave has passed while the server worked on the call.
pub const LATE: &str = "deadline";
/// The proxies that forwarded a request, one identity in each field, as `CDN-Loop` has those of content delivery networks (RFC 8586):
/// a proxy that finds its own too often ends a loop.
pub const LOOP: &str = "x-fairmesh-loop";
/// The load report in text form: `TEXT cpu_utilization=0.3,named_metrics.concurrent_requests=4` (ORCA). For HTTP answers.
pub const LOAD: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// The load report as an `xds.data.orca.v3.OrcaLoadReport`, base64. A trailer of gRPC answers.
pub const LOAD_BIN: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Where the server layer tells its load without a call: it answers a `GET`, by HTTP/1.1 or HTTP/2, with status 204 and the
/// header `endpoint-load-metrics`, whatever the service behind it speaks.
pub const LOAD_PATH: &str = "/.well-known/fairmesh/load";

/// The named metric of a load report that counts requests begun and not finished, besides the one that it answers.
pub const OUTSTANDING: &str = "concurrent_requests";

/// The named metric of a load report that counts long streams under way (Uber, assisted balancing); left out while there is none.
pub const STREAMS: &str = "concurrent_streams";

/// Whether there may be a header by which a caller tells what is wanted of its call: asked in one pass, since most calls have
/// none, and looking each up would cost a hash.
pub fn may_tell(headers: &http::HeaderMap) -> bool {
    let tells = |name: &str| is_mesh_header(name) || name == GRPC_TIMEOUT;
    headers.keys().any(|name| tells(name.as_str()))
}

/// Whether a header name, in any case, is reserved for options of the mesh. A request with one is not forwarded from its
/// read buffer. The header of loop detection is no option.
#[inline]
pub fn is_mesh_header(name: &str) -> bool {
    const PREFIX: &str = "x-fairmesh-";
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        && !name.eq_ignore_ascii_case(LOOP)
}
