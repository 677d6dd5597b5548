use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use super::open::system_error;
use crate::StoreError;

/// Keeps other processes off a store file for as long as the result lives, also while the store is being created or
/// reopened, when redb's own lock is not held. The kernel releases it when the process dies.
pub(super) fn take(path: &Path) -> Result<File, StoreError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|e| system_error(directory, e))?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let beside = Path::new(&beside);
    let file = File::options().create(true).truncate(false).write(true).open(beside);
    let file = file.map_err(|e| system_error(beside, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { place: path.into() }),
        Err(TryLockError::Error(e)) => Err(system_error(beside, e)),
    }
}
