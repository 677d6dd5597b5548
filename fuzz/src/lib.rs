//! Parsers of bytes and texts from other programs, each with the properties that must hold for any input.
//!
//! A target is a function of some bytes, which panics where something does not hold. libFuzzer runs it in `libfuzzer`, a
//! workspace of its own, since its compiler options are not ours; `tests/replay.rs` runs it with every other test, on what
//! libFuzzer found worth keeping (`corpus`), and on some mutations of that.
//!
//! Rejected: bodies in the files of libFuzzer's targets, which no test would ever run, and few machines compile.

pub mod dns_query;
pub mod headers;
pub mod hpack;
pub mod http1_call;
pub mod http1_plain;
pub mod http1_request;
pub mod http1_response;
pub mod http2_call;
pub mod identity;
pub mod kernel_head;
pub mod local_answer;
pub mod manifest;
pub mod mutation;
pub mod protocol_detect;
pub mod proxy_protocol;
pub mod record_decode;
pub mod rib_key;
pub mod route_match;
pub mod serve_http1;
pub mod serve_http2;
pub mod shard_decode;
pub mod traceparent;
pub mod user_token;
pub mod watch;

mod cut;
mod echo;
mod frames;
mod pipe;

/// A function that panics where what must hold of these bytes does not.
pub type Target = fn(&[u8]);

/// All of them, by the names of their corpora.
pub const TARGETS: [(&str, Target); 23] = [
    ("dns_query", dns_query::run),
    ("headers", headers::run),
    ("hpack", hpack::run),
    ("http1_response", http1_response::run),
    ("http1_call", http1_call::run),
    ("http1_plain", http1_plain::run),
    ("http1_request", http1_request::run),
    ("http2_call", http2_call::run),
    ("identity", identity::run),
    ("kernel_head", kernel_head::run),
    ("local_answer", local_answer::run),
    ("manifest", manifest::run),
    ("protocol_detect", protocol_detect::run),
    ("proxy_protocol", proxy_protocol::run),
    ("record_decode", record_decode::run),
    ("rib_key", rib_key::run),
    ("route_match", route_match::run),
    ("serve_http1", serve_http1::run),
    ("serve_http2", serve_http2::run),
    ("shard_decode", shard_decode::run),
    ("traceparent", traceparent::run),
    ("user_token", user_token::run),
    ("watch", watch::run),
];
