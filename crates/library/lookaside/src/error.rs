use fairmesh_wire::transport::BindError;

/// Why a lookaside failed to start.
#[derive(Debug, thiserror::Error)]
pub enum LookasideError {
    /// The listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address of the admin pages cannot be listened on.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
}
