use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use crate::{PATIENCE, eventually_within};

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
    let mut left = Ok(());
    eventually_within(PATIENCE, || {
        // Listed anew each time: a program that was starting may have created another one.
        let mut own = folders(&hierarchy).into_iter();
        left = own.try_for_each(|one| match one.file_name() {
            Some(name) if is_own(&name.to_string_lossy()) => remove(&one),
            _ => Ok(()),
        });
        left.is_ok()
    });
    assert!(left.is_ok() || thread::panicking(), "a cgroup of {cgroup} is left: {left:?}");
}

/// Removes a cgroup and the cgroups below it.
fn remove(folder: &Path) -> io::Result<()> {
    // Programs may be left after a failure. Linux before 5.14 has no such file.
    let _ = fs::write(folder.join("cgroup.kill"), "1");
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
