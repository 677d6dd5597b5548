use fairmesh_store::StoreError;
use fairmesh_wire::transport::BindError;

/// Why a replica cannot start or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// No upstream is configured.
    #[error("no upstream is configured; give at least one control plane or replica, such as 127.0.0.1:7400")]
    NoUpstream,
    /// No address to serve is configured.
    #[error("no address to serve is configured; give at least one, such as 127.0.0.1:7403")]
    NoAddress,
    /// The copy on disk cannot be used.
    #[error("the replica's copy on disk: {0}")]
    Copy(#[from] StoreError),
    /// The replica cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The replica cannot listen on the address of the admin pages.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Serving failed.
    #[error("serving ended: {0}; start the replica again, and report this if it repeats")]
    Serve(String),
}
