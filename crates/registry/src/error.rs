use fairmesh_model::Invalid;
use fairmesh_rib::Conflict;
use fairmesh_store::WriteError;

/// Why the registry did not do what it was asked to. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// What was sent can never be right.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// What it is about does not exist.
    #[error("{0}")]
    NotFound(Invalid),
    /// It may be right at another time, or after another call.
    #[error("{0}")]
    Refused(Invalid),
    /// Somebody else changed it meanwhile.
    #[error("{0}")]
    Conflict(Invalid),
    /// The store does not take writes now.
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

    /// Field, problem and hint, for answers in parts.
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
        let hint = "others write the same records; try again";
        Self::Conflict(Invalid::new(&*conflict.key, conflict.to_string(), hint))
    }
}

impl From<WriteError> for RegistryError {
    fn from(error: WriteError) -> Self {
        match &error {
            WriteError::Conflict(conflict) => conflict.into(),
            WriteError::TooLarge { .. } => {
                Self::Invalid(Invalid::new("", error.to_string(), "send it in several calls"))
            }
            WriteError::Overloaded { .. }
            | WriteError::DiskFull { .. }
            | WriteError::Failed { .. }
            | WriteError::Unavailable { .. }
            | WriteError::Refused { .. }
            | WriteError::Unknown { .. } => Self::Unavailable(Invalid::new(
                "store",
                error.to_string(),
                "try again; calls go on meanwhile",
            )),
        }
    }
}
