//! Connections to the endpoints of services: one [`EndpointPool`] per endpoint, over HTTP/1.1 or HTTP/2.
//!
//! This crate stands between [`fairmesh_wire`], which opens connections, and `calls`, which decides what to send where.
//! A pool sends one request, and reports a missing response as a [`SendError`]. It knows neither routes nor retries.
//!
//! Decision: a call writes to and reads from its connection itself, or the calls that share a connection do so
//! together. Rejected: hyper, whose client wraps every connection in a task and passes every request through a channel.

#![warn(clippy::missing_errors_doc)]

mod abort_on_drop;
mod address_pool;
mod attempt_waits;
mod connection_hook;
mod connector;
mod counters;
mod endpoint_pool;
mod error;
mod event_loops;
mod h1;
mod h2;
mod lent_connection;
mod opaque_debug;
mod own_addresses;
mod raw_connection;
mod recorded_body;
mod request;
mod request_body;
mod response;
mod timer;

pub use self::{
    address_pool::AddressPool,
    attempt_waits::{AttemptTimeouts, IdleTimeout},
    connection_hook::ConnectionHook,
    connector::TransportContext,
    counters::{OpenConnection, PoolCounters, count},
    endpoint_pool::EndpointPool,
    error::{SendError, violates_protocol},
    event_loops::set_event_loop,
    h1::{BorrowedExchange, BorrowedOutcome, ResponseBody as H1Body, call_over},
    h2::{ResponseBody as H2Body, SharedConnection, start},
    lent_connection::{ConnectionOwner, EndpointConnection, OwnedConnection},
    own_addresses::OwnAddresses,
    raw_connection::RawConnection,
    request::{Head, PendingRequest, Request},
    request_body::{Replay, RequestBody},
    response::{EndpointResponse, SendResult},
    timer::PooledTimer,
};
