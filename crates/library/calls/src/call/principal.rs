//! The caller for whom a proxy makes calls.

use std::{net::IpAddr, sync::Arc};

use fairmesh_model::{CallerId, DefaultAuthorization};
use fairmesh_router::TokenVerifier;
use fairmesh_wire::{LogLimiter, proxy_protocol::ConnectionId};
use tokio::sync::{Semaphore, watch};

/// The most mirrored calls in flight of one tenant, or of a program: beyond it they are skipped, so that they cannot delay other calls.
const MAX_MIRRORED_CALLS: usize = 64;

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
    /// The address from which the connection comes.
    pub source: IpAddr,
    /// Verifies tokens of end users, by the mesh's issuers at the time of each call.
    pub tokens: watch::Receiver<Arc<dyn TokenVerifier>>,
    /// The connection on which the calls arrive.
    pub connection: ConnectionId,
    /// Limits the lines that refused calls cause. Callers of one tenant share it, and leave the lines of others alone.
    pub log: Arc<LogLimiter>,
    /// Permits of mirrored calls, which callers of one tenant share: a tenant whose mirror does not respond takes none of others.
    pub mirrors: Arc<Semaphore>,
}

impl Principal {
    /// Permits of the mirrored calls of one tenant: 64 in flight.
    pub fn mirror_permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(MAX_MIRRORED_CALLS))
    }
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        (&self.caller, self.connection) == (&other.caller, other.connection)
    }
}

impl Eq for Principal {}
