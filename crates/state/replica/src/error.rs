use fairmesh_store::StoreError;
use fairmesh_wire::transport::BindError;

/// Why a replica cannot start or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// There is no upstream.
    #[error("no upstream is configured; give at least one control plane or replica, such as 127.0.0.1:7400")]
    NoUpstream,
    /// There is no address to serve.
    #[error("no address to serve is configured; give at least one, such as 127.0.0.1:7403")]
    NoAddress,
    /// The copy on disk cannot be used.
    #[error("the replica's copy on disk: {0}")]
    Copy(#[from] StoreError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The address of the admin pages cannot be listened on.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Serving failed.
    #[error("serving ended: {0}; start the replica again, and report this if it repeats")]
    Serve(String),
}
