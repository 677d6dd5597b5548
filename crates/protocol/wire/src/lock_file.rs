//! Locks between processes, as files.

use std::{
    fs::{File, Permissions, TryLockError},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// Only the user of the process: who can open the file for reading can lock it, and keep the process from starting.
const MODE: u32 = 0o600;

/// Takes the lock in the file at `path`, which is made where it is missing. The system releases it when the process ends in any
/// way.
///
/// # Errors
/// `WouldBlock` while another process has it; else why the file cannot be opened or locked.
pub fn lock_file(path: &Path) -> Result<File, TryLockError> {
    let file = File::options().create(true).truncate(false).write(true).mode(MODE).open(path);
    let file = file.map_err(TryLockError::Error)?;
    // One of a release before may be open to others. That of another user stays as it is.
    if file.metadata().is_ok_and(|facts| facts.permissions().mode() & 0o077 != 0) {
        let _ = file.set_permissions(Permissions::from_mode(MODE));
    }
    file.try_lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_taken_once_and_by_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let held = lock_file(&path).unwrap();
        assert_eq!(held.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(lock_file(&path), Err(TryLockError::WouldBlock)));
        drop(held);
        lock_file(&path).unwrap();
    }
}
