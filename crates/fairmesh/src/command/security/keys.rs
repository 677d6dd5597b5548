//! Files with private keys on this machine.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::command::{
    finding::{Level, Report},
    processes::default_paths::state_folders,
};

/// Mode bits of a key that group or others have.
const OTHERS: u32 = 0o077;
/// How deep folders of processes lie in a folder of data.
const MAX_DEPTH: usize = 3;
/// Files that are examined; a folder of data has a few.
const MAX_FILES: usize = 10_000;

/// Examines the keys in the default folders of processes and the given ones.
pub(super) fn check(given: &[PathBuf], report: &mut Report) {
    let mut files = Vec::new();
    // A given folder may be a default one.
    for folder in BTreeSet::from_iter(state_folders(given)) {
        match find_keys(&folder, MAX_DEPTH, &mut files) {
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
    let open = files.iter().filter(|file| file.metadata().is_ok_and(|facts| facts.mode() & OTHERS != 0));
    let open: Vec<_> = open.collect();
    for file in &open {
        let message = format!("other users may read the key {}", file.display());
        let remedy = format!(
            "chmod 600 {}; if others use this machine, have the key replaced: 'fairmesh identity rotate' for a control plane, else delete the \
             folder and join again",
            file.display()
        );
        report.add("keys.permissions", Level::Error, message, remedy);
    }
    if open.is_empty() && !files.is_empty() {
        report.ok(
            "keys.permissions",
            format!("only their owners read the {} keys on this machine", files.len()),
        );
    }
}

/// Adds the files whose name ends with `.key`.
fn find_keys(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() && depth > 0 {
            find_keys(&path, depth - 1, found)?;
        } else if path.extension().is_some_and(|end| end == "key") && found.len() < MAX_FILES {
            found.push(path);
        }
    }
    Ok(())
}
