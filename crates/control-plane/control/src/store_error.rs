use fairmesh_rib::server::WriteError;
use fairmesh_store::WriteError as StoreWriteError;

/// Converts an error of the store to the error that callers get.
pub(crate) fn write_error(error: StoreWriteError) -> WriteError {
    match error {
        StoreWriteError::Conflict(conflict) => WriteError::Conflict(conflict),
        StoreWriteError::TooLarge(problem) => WriteError::Invalid(problem),
        other => WriteError::Failed(other.to_string()),
    }
}
