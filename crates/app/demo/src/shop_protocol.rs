//! The generated types of the demo's own protocol.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::disallowed_methods
)]

tonic::include_proto!("fairmesh.demo.v1");
