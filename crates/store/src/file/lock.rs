use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use super::open::system_error;
use crate::StoreError;

/// Excludes other processes from a store file while the returned file lives, also while the store is being created or
/// reopened, when redb's own lock is not held. The kernel releases it when the process dies.
pub(super) fn acquire(path: &Path) -> Result<File, StoreError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|e| system_error(directory, e))?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = Path::new(&lock_path);
    let file = File::options().create(true).truncate(false).write(true).open(lock_path);
    let file = file.map_err(|e| system_error(lock_path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { location: path.into() }),
        Err(TryLockError::Error(e)) => Err(system_error(lock_path, e)),
    }
}
