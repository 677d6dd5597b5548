use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::eventually_within;

/// Maximum time for killed programs to leave their cgroup.
const LIMIT: Duration = Duration::from_secs(10);

/// Removes the cgroup of a test, such as `/fairmesh-test-1-name`, the cgroups below it, and those whose names start
/// with its name and `-`, once their programs have ended.
///
/// # Panics
/// If a cgroup cannot be removed, unless the test has already failed.
pub fn remove_cgroups(cgroup: &str) {
    let Some(hierarchy) = hierarchy() else { return };
    let name = cgroup.trim_start_matches('/');
    let is_own =
        |found: &str| found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let own: Vec<_> = folders(&hierarchy)
        .into_iter()
        .filter(|one| one.file_name().is_some_and(|name| is_own(&name.to_string_lossy())))
        .collect();
    let mut left = Ok(());
    eventually_within(LIMIT, || {
        left = own.iter().try_for_each(|folder| remove(folder));
        left.is_ok()
    });
    assert!(left.is_ok() || thread::panicking(), "a cgroup of {cgroup} is left: {left:?}");
}

/// Removes a cgroup and the cgroups below it.
fn remove(folder: &Path) -> io::Result<()> {
    folders(folder).iter().try_for_each(|below| remove(below))?;
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Mount point of cgroup v2.
fn hierarchy() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let folder = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| folder.into())
    })
}
