//! The control plane: the routing information base, the registry and administration as one server.
//!
//! The crate owns the store, so it sits above everything but the binary. Only one control plane at a time writes a
//! store; with etcd, others stand by. It serves gRPC (`Rib`, `Registry`, `Admin` and others) on every configured
//! address, and the registry as JSON, metrics and health over HTTP. No call of a user's program ever waits for the
//! control plane: agents have a copy while it is down.
//!
//! Every write goes through `AppliedStore`, which returns once the change is on disk *and* served to readers, so that
//! writers read their own writes. Returning at the commit was rejected: each caller would have to wait for the revision
//! itself, and some would forget.

mod access;
mod admin;
mod caller_numbers;
mod change_message;
mod controllers;
mod endpoint_counts;
mod error;
mod facts;
#[doc(hidden)]
pub mod fuzzing;
mod health_checks;
mod http;
mod identity;
mod imbalance;
mod indices;
mod metrics;
mod monotonic_clock;
mod open_store;
mod page;
mod quotas;
mod read_lease;
mod readiness;
mod served_rib;
mod server;
mod signals;
mod store_applier;
mod tasks;
mod traces;
mod traffic;
mod user_tokens;
mod web;
mod write_error;
mod zone_probes;

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::pin};

use fairmesh_audit as audit;
use fairmesh_model::TrustDomain;
use fairmesh_rib::wall_clock;
use fairmesh_wire::transport::{Address, Transport};

pub use admin::HISTORY_KEPT;
pub use controllers::ShadowController;
pub use error::ControlError;
pub use fairmesh_store::{EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
pub use server::{Control, partition_store, renew_store_id};
pub use user_tokens::{JwksLocation, OidcConfig};
pub use web::{FetchError, MAX_JWKS_DOCUMENT, WebUrl, fetch};

/// Software name in handshakes.
pub(crate) const SOFTWARE: &str = concat!("control plane ", env!("CARGO_PKG_VERSION"));

/// The trust domain of a store's mesh. A store with a trust domain keeps it.
#[derive(Clone, Debug, Default)]
pub enum TrustDomainChoice {
    /// The store's own domain, if any.
    #[default]
    Stored,
    /// This domain, if the store is new.
    OfNewStore(TrustDomain),
    /// This domain.
    Given(TrustDomain),
}

impl TrustDomainChoice {
    /// The domain to use from now on, unless the store has one already.
    pub(crate) fn told(&self, is_new: bool, recorded: Option<&TrustDomain>) -> Option<TrustDomain> {
        match self {
            Self::Given(domain) => Some(domain.clone()),
            Self::OfNewStore(domain) if is_new && recorded.is_none() => Some(domain.clone()),
            Self::OfNewStore(_) | Self::Stored => None,
        }
    }
}

/// Configuration of a control plane.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// How connections are opened and accepted.
    pub transport: Transport,
    /// Directory of the store (unless it is in etcd) and of the imbalance indicator; created if missing.
    pub data_dir: PathBuf,
    /// The etcd store, if the store is not in the data directory.
    pub etcd: Option<EtcdConfig>,
    /// The trust domain whose certificates this control plane issues.
    pub trust_domain: TrustDomainChoice,
    /// Listening addresses of gRPC: TCP, Unix sockets, or both. At least one.
    pub grpc: Vec<Address>,
    /// Listening address of HTTP.
    pub http: SocketAddr,
    /// Address at which it takes spans by OTLP over HTTP; without one, it keeps none.
    pub traces: Option<SocketAddr>,
    /// Host names by which web clients know this control plane, besides this machine's.
    pub http_names: Vec<String>,
    /// The issuer of user tokens; without one, tokens are refused.
    pub oidc: Option<OidcConfig>,
    /// YAML files of endpoints, and directories of such files, to watch.
    pub sources: Vec<PathBuf>,
    /// Controllers that show their changes without making them.
    pub shadow_controllers: Vec<ShadowController>,
}

/// Runs a control plane until `shutdown` completes, then finishes calls in flight.
///
/// # Errors
/// [`ControlError`] when it cannot start, or cannot continue.
pub async fn run(config: ControlConfig, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
    let mut shutdown = pin!(shutdown);
    let control = tokio::select! {
        started = Control::start(config) => started?,
        // The start may wait for a store held by another control plane.
        () = &mut shutdown => return Ok(()),
    };
    control.run(shutdown).await
}
