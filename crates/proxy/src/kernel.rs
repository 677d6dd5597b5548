//! Connections that eBPF programs redirect to a listener `kernel:IP:PORT`, and requests on them that these programs send themselves.
//!
//! The kernel sends a plain request on a pooled connection (`pooled`) to an endpoint (`endpoint`) of a service (`published`), which it
//! picks as the router does, and leaves a copy of it. The response arrives here, and the task of the caller's connection (`caller`) handles the copy as if it had read it
//! there: the same routes, counters, timeouts and retries, except that the first attempt was sent. A response path of its own was
//! rejected, since each of these would exist twice. Of a server on this machine the kernel sends plain responses to the caller too; then
//! the call is recorded here afterwards (`completed`).

pub(crate) mod attached;
pub(crate) mod caller;
mod completed;
mod endpoint;
mod policy;
mod pooled;
mod published;
pub(crate) mod redirected;
