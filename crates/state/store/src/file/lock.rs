use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use fairmesh_wire::lock_file;

use super::open::system_error;
use crate::StoreError;

/// Excludes other processes from a store file while the returned lock file is open. This also covers times without
/// redb's own lock, while the store is being created or reopened. The kernel releases the lock when the process dies.
pub(super) fn acquire(path: &Path) -> Result<File, StoreError> {
    if let Some(directory) = path.parent() {
        create_folder(directory).map_err(|e| system_error(directory, e))?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = Path::new(&lock_path);
    lock_file(lock_path).map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Locked { location: path.into() },
        TryLockError::Error(error) => system_error(lock_path, error),
    })
}

/// Creates a folder that only its owner may enter. Parent folders get the system's default permissions.
fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}
