//! Connections that eBPF programs redirect to a listener `kernel:IP:PORT`, and requests on them that these programs send themselves.
//!
//! The kernel sends a plain request on a pooled connection (`pooled`) to an endpoint (`endpoint`) of a service (`published`), which it
//! picks as the router does, and leaves a copy of it. The response arrives here. If it is plain, it goes to the caller as it is (`relay`),
//! and the call is recorded afterwards (`completed`), as that of a server on this machine whose response the kernel sends to the caller
//! itself. Otherwise the task of the caller's connection (`caller`) handles the copy as if it had read it there: the same routes, counters,
//! timeouts and retries, except that the first attempt was sent.

pub(crate) mod attached;
pub(crate) mod caller;
pub(crate) mod caller_stream;
mod completed;
mod endpoint;
pub(crate) mod metrics;
pub(crate) mod origin;
mod policy;
mod pooled;
mod published;
pub(crate) mod redirected;
mod relay;
mod served_caller;
