//! HTTP/2: calls share a connection, and another one is opened when the server allows no more streams.

mod connection;
mod pool;
mod response_body;
mod shared_connection;

pub(super) use self::pool::{Pool, PoolOwner};
pub use self::{
    connection::start_uncounted as start, response_body::ResponseBody, shared_connection::SharedConnection,
};
