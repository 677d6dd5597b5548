//! The caller on whose behalf a proxy makes calls.

use std::{net::IpAddr, sync::Arc};

use fairmesh_model::{CallerId, DefaultAuthorization};
use fairmesh_router::TokenVerifier;
use fairmesh_wire::{LogLimiter, proxy_protocol::ConnectionId};
use tokio::sync::{Semaphore, watch};

/// Maximum number of mirrored calls in flight, per tenant or per program. Further calls are not mirrored, so that
/// mirrored calls cannot delay other calls.
const MAX_MIRRORED_CALLS: usize = 64;

/// The caller on whose behalf a proxy makes calls, if the proxy authorizes them and no server behind it does.
///
/// It is an extension of requests, as `Arc<Principal>`. The policy of the target service decides, with the rewritten
/// path, as the service's servers would. A call without a principal is authorized by the server.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The authenticated identity of the caller.
    pub caller: CallerId,
    /// The decision if no rule applies: the mesh's default at the time of each call.
    pub default: watch::Receiver<DefaultAuthorization>,
    /// Source address of the connection.
    pub source: IpAddr,
    /// Verifies end users' tokens, with the mesh's issuers at the time of each call.
    pub tokens: watch::Receiver<Arc<dyn TokenVerifier>>,
    /// The connection on which the calls arrive.
    pub connection: ConnectionId,
    /// Limits log lines about refused calls. Callers of one tenant share the limiter, so they cannot suppress log
    /// lines about other tenants.
    pub log: Arc<LogLimiter>,
    /// Permits for mirrored calls, shared by the callers of one tenant. A tenant whose mirror does not respond takes
    /// no permits from other tenants.
    pub mirrors: Arc<Semaphore>,
}

impl Principal {
    /// Returns the permits for the mirrored calls of one tenant: 64 in flight.
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
