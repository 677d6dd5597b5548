//! Files on this machine with private keys or with the records of all tenants, and lock files of processes.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use fairmesh_console::default_paths::state_folders;
use fairmesh_wire::environment;

use crate::findings_report::{Level, Report};

/// Permission bits of group and others.
const OTHERS: u32 = 0o077;
/// Maximum depth of process folders within a data folder.
const MAX_DEPTH: usize = 3;
/// Maximum number of files examined of each kind; a data folder has a few.
const MAX_FILES: usize = 10_000;

/// Checks keys and stores in the default folders of processes and the given ones.
pub(super) fn check(given: &[PathBuf], report: &mut Report) {
    let mut files = Found::default();
    // A given folder may be a default one.
    for folder in BTreeSet::from_iter(state_folders(given)) {
        match find(&folder, MAX_DEPTH, &mut files) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !given.contains(&folder) => {}
            Err(error) => report.add(
                "keys.unreadable",
                Level::Warning,
                format!("cannot look into {}: {error}", folder.display()),
                "run this command as the user of the processes",
            ),
        }
    }
    files.locks.extend(socket_locks());
    check_keys(&files.keys, report);
    check_stores(&files.stores, report);
    check_locks(&files.locks, report);
}

fn check_keys(keys: &[PathBuf], report: &mut Report) {
    let open = open_to_others(keys);
    for file in &open {
        let message = format!("other users may read the key {}", file.display());
        let remedy = format!(
            "chmod 600 {}; if others use this machine, have the key replaced: 'fairmesh identity rotate' for a control plane, with --root for root.key, else delete the \
             folder and join again",
            file.display()
        );
        report.add("keys.permissions", Level::Error, message, remedy);
    }
    if open.is_empty() && !keys.is_empty() {
        let message = format!("only their owners read the {} keys on this machine", keys.len());
        report.ok("keys.permissions", message);
    }
}

fn check_stores(stores: &[PathBuf], report: &mut Report) {
    let open = open_to_others(stores);
    for file in &open {
        let message = format!("other users may read all records in {}", file.display());
        let remedy = format!("chmod 600 {}; a start of its process does that too", file.display());
        report.add("stores.permissions", Level::Warning, message, remedy);
    }
    if open.is_empty() && !stores.is_empty() {
        let message = format!("only their owners read the {} stores on this machine", stores.len());
        report.ok("stores.permissions", message);
    }
}

/// The locks beside the default sockets of agents.
fn socket_locks() -> impl Iterator<Item = PathBuf> {
    let sockets = [Some(environment::system_socket()), environment::own_socket()];
    let beside = |socket: PathBuf| {
        let mut lock = socket.into_os_string();
        lock.push(".lock");
        PathBuf::from(lock)
    };
    sockets.into_iter().flatten().map(beside).filter(|lock| lock.exists())
}

fn check_locks(locks: &[PathBuf], report: &mut Report) {
    let open = open_to_others(locks);
    for file in &open {
        let message =
            format!("other users may take the lock {} and keep its process from starting", file.display());
        let remedy = format!("chmod 600 {}; a start of its process does that too", file.display());
        report.add("locks.permissions", Level::Warning, message, remedy);
    }
    if open.is_empty() && !locks.is_empty() {
        let message = format!("only their owners take the {} locks on this machine", locks.len());
        report.ok("locks.permissions", message);
    }
}

/// The files that group or others may access.
fn open_to_others(files: &[PathBuf]) -> Vec<&PathBuf> {
    files.iter().filter(|file| file.metadata().is_ok_and(|facts| facts.mode() & OTHERS != 0)).collect()
}

/// Files to examine.
#[derive(Debug, Default)]
struct Found {
    keys: Vec<PathBuf>,
    /// Stores of control planes and replicas.
    stores: Vec<PathBuf>,
    locks: Vec<PathBuf>,
}

/// Adds the files whose names end with `.key`, `.redb` and `lock`.
fn find(folder: &Path, depth: usize, found: &mut Found) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() && depth > 0 {
            find(&path, depth - 1, found)?;
            continue;
        }
        let files = match path.extension().and_then(OsStr::to_str) {
            Some("key") => &mut found.keys,
            Some("redb") => &mut found.stores,
            Some("lock") => &mut found.locks,
            None if path.file_name() == Some(OsStr::new("lock")) => &mut found.locks,
            _ => continue,
        };
        if files.len() < MAX_FILES {
            files.push(path);
        }
    }
    Ok(())
}
