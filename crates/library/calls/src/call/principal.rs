//! The caller for whom a proxy makes calls.

use std::sync::Arc;

use fairmesh_model::{CallerId, DefaultAuthorization};
use fairmesh_wire::{LogLimiter, proxy_protocol::ConnectionId};
use tokio::sync::watch;

/// The caller for whom a proxy makes calls, where the proxy decides whether they are allowed and no server behind it does.
///
/// It is an extension of requests, as `Arc<Principal>`. The policy of the service that gets a call decides, with the rewritten path, as its
/// servers would. A call without a principal is decided on by the server.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The identity that the caller has proved.
    pub caller: CallerId,
    /// What applies where no rule decides: the mesh's default at the time of each call.
    pub default: watch::Receiver<DefaultAuthorization>,
    /// The connection on which the calls arrive.
    pub connection: ConnectionId,
    /// Limits the lines that refused calls cause. Callers of one tenant share it, and leave the lines of others alone.
    pub log: Arc<LogLimiter>,
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        (&self.caller, self.connection) == (&other.caller, other.connection)
    }
}

impl Eq for Principal {}
