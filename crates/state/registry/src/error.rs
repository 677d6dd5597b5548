use fairmesh_model::Invalid;
use fairmesh_rib::Conflict;
use fairmesh_store::WriteError;

/// Why the registry refused a call. A refused call changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// An object that the request names does not exist.
    #[error("{0}")]
    NotFound(Invalid),
    /// The request conflicts with the present state. It may succeed later, or after another call.
    #[error("{0}")]
    Refused(Invalid),
    /// Another writer changed the record concurrently.
    #[error("{0}")]
    Conflict(Invalid),
    /// The store takes no writes at present.
    #[error("{0}")]
    Unavailable(Invalid),
}

impl RegistryError {
    pub(crate) fn not_found(field: &str, problem: String, hint: &str) -> Self {
        Self::NotFound(Invalid::new(field, problem, hint))
    }

    pub(crate) fn refused(field: &str, problem: String, hint: &str) -> Self {
        Self::Refused(Invalid::new(field, problem, hint))
    }

    /// Returns field, problem and hint, for structured responses.
    pub fn reason(&self) -> &Invalid {
        let (Self::Invalid(reason)
        | Self::NotFound(reason)
        | Self::Refused(reason)
        | Self::Conflict(reason)
        | Self::Unavailable(reason)) = self;
        reason
    }
}

impl From<&Conflict> for RegistryError {
    fn from(conflict: &Conflict) -> Self {
        let hint = "other writers change the same records; retry";
        Self::Conflict(Invalid::new(&*conflict.key, conflict.to_string(), hint))
    }
}

impl From<WriteError> for RegistryError {
    fn from(error: WriteError) -> Self {
        match &error {
            WriteError::Conflict(conflict) => conflict.into(),
            WriteError::TooLarge { .. } => {
                Self::Invalid(Invalid::new("", error.to_string(), "split it into several calls"))
            }
            WriteError::Overloaded { .. }
            | WriteError::DiskFull { .. }
            | WriteError::Failed { .. }
            | WriteError::Unavailable { .. }
            | WriteError::Refused { .. }
            | WriteError::Unknown { .. } => Self::Unavailable(Invalid::new(
                "store",
                error.to_string(),
                "retry; calls between services continue",
            )),
        }
    }
}
