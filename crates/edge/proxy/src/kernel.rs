//! Connections that eBPF programs redirect to a listener `kernel:IP:PORT`, and requests on them that the programs send
//! themselves.
//!
//! The kernel sends a plain request on a pooled connection (`pooled`) to an endpoint (`endpoint`) of a service (`published`),
//! which it picks like the router, and leaves a copy here. The proxy receives the response. A plain response is relayed to the
//! caller unchanged (`relay`), and the call is recorded afterwards (`completed`); so are calls to local servers whose responses
//! the kernel sends itself. Otherwise the task of the caller's connection (`caller`) handles the copy as if it had read the
//! request: with the same routes, counters, timeouts and retries, except that the first attempt was sent.

pub(crate) mod attached_maps;
pub(crate) mod attachment;
pub(crate) mod caller;
pub(crate) mod caller_stream;
mod completed_calls;
pub(crate) mod container_listeners;
pub(crate) mod local_answer;
mod local_permit;
pub(crate) mod metrics;
mod policy;
mod pooled_connection;
mod published_endpoint;
mod published_services;
pub(crate) mod redirected_connection;
mod response_relay;
mod served_caller;
mod sidecar_bypass_calls;
