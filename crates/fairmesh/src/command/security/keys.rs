//! Files with private keys, and with the records of all tenants, on this machine.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::command::{
    finding::{Level, Report},
    processes::default_paths::state_folders,
};

/// Mode bits of a file that group or others have.
const OTHERS: u32 = 0o077;
/// How deep folders of processes lie in a folder of data.
const MAX_DEPTH: usize = 3;
/// Files of a kind that are examined; a folder of data has a few.
const MAX_FILES: usize = 10_000;

/// Examines the keys and stores in the default folders of processes and the given ones.
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
    check_keys(&files.keys, report);
    check_stores(&files.stores, report);
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

/// Those that group or others may use.
fn open_to_others(files: &[PathBuf]) -> Vec<&PathBuf> {
    files.iter().filter(|file| file.metadata().is_ok_and(|facts| facts.mode() & OTHERS != 0)).collect()
}

/// Files to examine.
#[derive(Debug, Default)]
struct Found {
    keys: Vec<PathBuf>,
    /// Of control planes and replicas.
    stores: Vec<PathBuf>,
}

/// Adds the files whose names end with `.key` and `.redb`.
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
            _ => continue,
        };
        if files.len() < MAX_FILES {
            files.push(path);
        }
    }
    Ok(())
}
