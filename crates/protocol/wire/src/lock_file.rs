//! File locks between processes.

use std::{
    fs::{File, Permissions, TryLockError},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// Mode of lock files: only the process's own user may open them. Any other user who could open the file could lock
/// it and keep the process from starting.
const MODE: u32 = 0o600;

/// Locks the file at `path`, which is created if missing. The system releases the lock when the process ends, however
/// it ends.
///
/// # Errors
/// `WouldBlock` while another process holds the lock; otherwise why the file cannot be opened or locked.
pub fn lock_file(path: &Path) -> Result<File, TryLockError> {
    let file = File::options().create(true).truncate(false).write(true).mode(MODE).open(path);
    let file = file.map_err(TryLockError::Error)?;
    // A file created by the previous release may be open to other users. A file of another user is left unchanged.
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
    fn file_lock_is_exclusive_and_private_to_its_user() {
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
