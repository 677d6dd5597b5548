//! Connections: one [`EndpointPool`] per endpoint, over HTTP/1.1 or HTTP/2.
//!
//! Neither uses hyper, whose client wraps every connection in a task and every request in a channel: here a call itself
//! writes and reads, or the calls that share a connection do so together.

mod abort_on_drop;
mod address_pool;
mod connection_hook;
mod connector;
mod endpoint_pool;
mod error;
mod h1;
mod h2;
mod lent_connection;
mod load_report;
mod own_addresses;
mod raw_connection;
mod recorded_body;
mod request;
mod request_body;
mod response;
mod timer;
mod wait;

pub use self::lent_connection::{ConnectionOwner, EndpointConnection};
pub(crate) use self::{
    address_pool::AddressPool,
    connector::TransportContext,
    endpoint_pool::EndpointPool,
    error::{SendError, violates_protocol},
    h1::{BorrowedExchange, BorrowedOutcome, ResponseBody as H1Body, call_over},
    h2::{ResponseBody as H2Body, SharedConnection, start},
    lent_connection::OwnedConnection,
    load_report::LoadRecorder,
    raw_connection::RawConnection,
    request::{Head, PendingRequest, Request},
    request_body::{Replay, RequestBody},
    response::{EndpointResponse, SendResult},
    timer::PooledTimer,
    wait::{AttemptTimeouts, IdleTimeout},
};
