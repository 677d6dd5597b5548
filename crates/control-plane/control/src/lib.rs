//! The control plane: the routing information base, the registry and administration as one server.
//!
//! The crate owns the store, so it sits above everything but the binary. Only one control plane at a time
//! writes to a store; with etcd, others stand by. It serves gRPC (`Rib`, `Registry`, `Admin` and others) on
//! every configured address, and the registry as JSON, metrics and health over HTTP. No call of a user's
//! program ever waits for the control plane: while it is down, agents use their copies of the records.
//!
//! Every write goes through `AppliedStore`, which returns once the change is on disk *and* served to readers,
//! so that writers read their own writes. Returning at the commit was rejected: each caller would have to
//! wait for the revision, and some would forget to.

mod access;
mod admin_service;
mod change_message;
mod commit_indices;
mod controllers;
mod endpoint_counts;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod health_checks;
mod http;
mod http_fetch;
mod identity;
mod imbalance;
mod metrics;
mod planner_facts;
mod rate_limits;
mod read_lease;
mod readiness;
mod reports;
mod served_rib;
mod server;
mod standby;
mod store_applier;
mod store_error;
mod tasks;
mod traces;
mod traffic;
mod user_tokens;
mod web_page_source;
mod zone_probes;

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::pin};

use fairmesh_audit as audit;
use fairmesh_rib::wall_clock;
use fairmesh_wire::transport::{Address, Transport};

pub use admin_service::HISTORY_KEPT;
pub use controllers::ShadowController;
pub use error::ControlError;
pub use fairmesh_gateway_control::GatewayLauncher;
pub use fairmesh_identity::TrustDomainChoice;
pub use fairmesh_store::{EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
pub use fairmesh_traces::TraceLink;
pub use http_fetch::{FetchError, MAX_JWKS_DOCUMENT, WebUrl, fetch};
pub use server::{Control, partition_store, renew_store_id};
pub use traces::TraceConfig;
pub use user_tokens::{JwksLocation, OidcConfig};

/// Name of this software in handshakes.
pub(crate) const SOFTWARE: &str = concat!("control plane ", env!("CARGO_PKG_VERSION"));

/// Configuration of a control plane.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The transport by which connections are opened and accepted.
    pub transport: Transport,
    /// Directory of the store (unless it is in etcd) and of the imbalance indicator's file. Created if
    /// missing.
    pub data_dir: PathBuf,
    /// Configuration of the etcd store; `None` keeps the store in the data directory.
    pub etcd: Option<EtcdConfig>,
    /// The trust domain for which this control plane issues certificates.
    pub trust_domain: TrustDomainChoice,
    /// Listening addresses of gRPC: TCP, Unix sockets, or both. At least one.
    pub grpc: Vec<Address>,
    /// Listening address of HTTP; `None` serves no pages.
    pub http: Option<SocketAddr>,
    /// How the control plane receives spans. With `None`, it keeps none.
    pub traces: Option<TraceConfig>,
    /// Host names under which web clients reach this control plane, in addition to this machine's name.
    pub http_names: Vec<String>,
    /// Files in PEM with the certificate of the pages and its key; `None` issues one for the host names.
    pub http_certificate: Option<(PathBuf, PathBuf)>,
    /// The issuer of user tokens. `None` refuses all tokens.
    pub oidc: Option<OidcConfig>,
    /// YAML files with endpoints, and directories of such files, to be watched.
    pub sources: Vec<PathBuf>,
    /// Admin addresses of proxies whose last and live requests the web page shows.
    pub proxies: Vec<SocketAddr>,
    /// Controllers that show the changes they decide without making them.
    pub shadow_controllers: Vec<ShadowController>,
    /// The command that starts backends of the gateway. With `None`, no backend is started.
    pub gateway_launcher: Option<GatewayLauncher>,
}

/// Runs a control plane until `shutdown` completes, and then lets calls in flight finish.
///
/// # Errors
/// [`ControlError`] when the control plane cannot start or cannot continue.
pub async fn run(config: ControlConfig, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
    let mut shutdown = pin!(shutdown);
    let control = tokio::select! {
        started = Control::start(config) => started?,
        // The start may have to wait for a store that another control plane holds.
        () = &mut shutdown => return Ok(()),
    };
    control.run(shutdown).await
}
