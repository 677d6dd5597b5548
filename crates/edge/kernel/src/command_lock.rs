//! Lets one command at a time change what is attached.
//!
//! A command reads which cgroups are attached, chooses free positions, and removes pins that are in use no longer: each step
//! relies on what the one before found. The kernel holds the lock, so nothing is left of a killed command.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::KernelError;

/// Folder of the lock, which root alone may enter: whoever can open the file can hold the lock. `/run/fairmesh` belongs to the
/// user of the agent.
const FOLDER: &str = "/run/fairmesh-kernel";
const FILE: &str = "lock";
/// Interval of attempts, and their number: a command holds the lock for less than a second, and many may start at once.
const INTERVAL: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 3_000;

/// The right to change attachments, until it is dropped.
#[derive(Debug)]
pub(crate) struct CommandLock {
    _file: File,
}

impl CommandLock {
    /// Waits for the lock of this machine. All folders of pins share it, since they share the cgroups.
    pub(crate) fn take() -> Result<Self, KernelError> {
        Self::take_in(Path::new(FOLDER), ATTEMPTS)
    }

    fn take_in(folder: &Path, attempts: u32) -> Result<Self, KernelError> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(KernelError::file(folder)(error));
            }
            _ => {}
        }
        let path = folder.join(FILE);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(KernelError::file(&path))?;
        for _ in 0..attempts {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK) => thread::sleep(INTERVAL),
                Err(Errno::INTR) => {}
                Err(error) => return Err(KernelError::file(path)(error.into())),
            }
        }
        Err(KernelError::Busy { path, seconds: (INTERVAL * attempts).as_secs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_other_command_is_waited_for_and_then_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("lock-of-test");
        let held = CommandLock::take_in(&folder, 1).unwrap();
        let refused = CommandLock::take_in(&folder, 2).unwrap_err().to_string();
        assert!(refused.contains("lock-of-test/lock") && refused.contains("run this again"), "{refused}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| CommandLock::take_in(&folder, ATTEMPTS));
            drop(held);
            waiting.join().unwrap().unwrap();
        });
    }
}
