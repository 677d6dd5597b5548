//! The control plane: the routing information base, the registry and administration as one server.
//!
//! It owns the store, so it sits above everything but the binary. Only a control plane writes the store, one at a time; in etcd,
//! others stand by. It serves three gRPC
//! services (`Rib`, `Registry`, `Admin`) on every address that it is given, and the registry as JSON, metrics and health
//! over HTTP. No call of a user's program ever waits for it: agents keep what they have while it is away.
//!
//! Everybody writes through one door, `Followed`, which answers when the change is on disk *and*
//! served to readers, so that whoever wrote reads what was written. Answering at the commit was rejected: each caller
//! would have to wait for the revision by itself, and some would forget.

mod admin;
mod backend;
mod census;
mod checks;
mod error;
mod following;
mod hold;
mod http;
mod imbalance;
mod metrics;
mod partitions;
mod quotas;
mod readiness;
mod server;

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::pin};

use fairmesh_wire::transport::Address;

pub use admin::HISTORY_KEPT;
pub use error::ControlError;
pub use fairmesh_store::{EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
pub use server::{Control, partition_store, renew_store_id};

/// Where a control plane keeps its data and listens.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The directory of the store, unless that is in etcd, and of the imbalance indicator; made when it is not there.
    pub data_dir: PathBuf,
    /// Where the store is, if not in the data directory.
    pub etcd: Option<EtcdConfig>,
    /// Where gRPC is served: TCP, Unix sockets, or both. At least one.
    pub grpc: Vec<Address>,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// YAML files of endpoints, and folders of such, that are watched.
    pub sources: Vec<PathBuf>,
}

/// Runs a control plane until `shutdown` completes, and then ends calls under way in order.
///
/// # Errors
/// [`ControlError`] when it cannot start, or cannot go on.
pub async fn run(config: ControlConfig, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
    let mut shutdown = pin!(shutdown);
    let control = tokio::select! {
        started = Control::start(config) => started?,
        // While it waits for a store that another control plane holds.
        () = &mut shutdown => return Ok(()),
    };
    control.run(shutdown).await
}
