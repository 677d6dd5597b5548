//! Cgroups v2, named by their path below the root.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, mount};

use crate::KernelError;

/// Mount point for our own cgroup2 hierarchy, used if none is mounted.
const OWN_MOUNT: &str = "/run/fairmesh/cgroup2";
const MOUNTS: &str = "/proc/self/mounts";

/// An existing cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(crate) folder: PathBuf,
    /// The cgroup's id in the kernel.
    pub(crate) id: u64,
    /// Number of directories that were created: the cgroup and its missing parents.
    pub(crate) was_created: u32,
}

/// The components of a path. Fails if the path does not lead to a cgroup below the root.
pub(crate) fn parts(path: &str) -> Result<Vec<&str>, KernelError> {
    let wrong = |path: &str, problem| Err(KernelError::Cgroup { path: path.to_owned(), problem });
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        let shown = if path.is_empty() { "''" } else { path };
        return wrong(shown, "is the root, and contains every program of the machine");
    }
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return wrong(path, "contains '.' or '..'");
    }
    Ok(parts)
}

impl Cgroup {
    /// Opens the cgroup at this path, such as `/shop`, or creates it.
    pub(crate) fn at(path: &str) -> Result<Self, KernelError> {
        let mut folder = hierarchy()?;
        let mut was_created = 0;
        for part in parts(path)? {
            folder.push(part);
            match fs::create_dir(&folder) {
                Ok(()) => was_created += 1,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let mut made = folder.ancestors().skip(1).take(was_created as usize);
                    // The first error is reported; this one is dropped.
                    let _ = made.try_for_each(fs::remove_dir);
                    return Err(KernelError::file(&folder)(error));
                }
            }
        }
        let id = fs::metadata(&folder).map_err(KernelError::file(&folder))?.ino();
        Ok(Self { folder, id, was_created })
    }
}

/// The cgroup of a process, such as `/shop`; `None` without a cgroup2 hierarchy.
pub(crate) fn cgroup_of(process: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The cgroup of this process.
pub fn own_cgroup() -> Option<String> {
    cgroup_of("self")
}

/// Whether a process is in this cgroup or a descendant.
pub(crate) fn contains(path: &str, process: u32) -> bool {
    cgroup_of(&process.to_string()).is_some_and(|own| Path::new(&own).starts_with(normal(path)))
}

/// Normalizes the path: one slash before each component.
pub(crate) fn normal(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect()
}

/// What has become of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupState {
    /// Programs run in it, or in a cgroup below it.
    Populated,
    /// No program runs in it.
    Empty,
    /// It was removed.
    Removed,
    /// It was removed, and another cgroup has its path.
    Replaced,
}

/// The state of the cgroup with this path and id.
pub(crate) fn state_of(path: &str, id: u64) -> CgroupState {
    existing(path).map_or(CgroupState::Removed, |folder| state_in(&folder, id))
}

/// The state of the cgroup with this id, whose directory this is, or was.
pub(crate) fn state_in(folder: &Path, id: u64) -> CgroupState {
    match fs::metadata(folder) {
        Ok(found) if found.ino() != id => CgroupState::Replaced,
        Ok(_) => match fs::read_to_string(folder.join("cgroup.events")) {
            Ok(events) if events.lines().any(|line| line == "populated 0") => CgroupState::Empty,
            // A file that cannot be read proves nothing: programs that run must not be left alone.
            _ => CgroupState::Populated,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => CgroupState::Removed,
        Err(_) => CgroupState::Populated,
    }
}

/// Visits a cgroup and those below it, each before what it contains is read, and the ids of their processes.
pub(crate) fn visit_members(folder: &Path, mut enter: impl FnMut(&Path), mut member: impl FnMut(u32)) {
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        enter(&folder);
        let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        members.lines().filter_map(|line| line.parse().ok()).for_each(&mut member);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
}

/// Moves this process into a cgroup, and creates the cgroup if it is missing.
///
/// # Errors
/// When `path` is the root, or the system refuses.
pub fn enter_cgroup(path: &str) -> Result<(), KernelError> {
    let members = Cgroup::at(path)?.folder.join("cgroup.procs");
    fs::write(&members, "0").map_err(KernelError::file(members))
}

/// Removes up to `count` directories, from a cgroup upwards, and stops at the first one in use. Returns
/// whether the cgroup still exists.
pub(crate) fn remove_empty(path: &str, count: u32) -> Result<bool, KernelError> {
    let own = folder_of(path)?;
    let mut folders = own.ancestors().take(count as usize);
    // The system refuses to remove cgroups in use.
    let _ = folders.try_for_each(fs::remove_dir);
    Ok(own.exists())
}

/// The directory of a cgroup such as `/shop`; `None` without a hierarchy, or if the cgroup does not exist.
pub(crate) fn existing(path: &str) -> Option<PathBuf> {
    let folder = mounted_cgroup2()?.join(path.trim_start_matches('/'));
    folder.exists().then_some(folder)
}

/// The directory of a cgroup such as `/shop`, whether or not it exists.
pub(crate) fn folder_of(path: &str) -> Result<PathBuf, KernelError> {
    Ok(hierarchy()?.join(path.trim_start_matches('/')))
}

/// The mount point of the cgroup2 hierarchy, on machines with version 1 often beside that; `None` if it is not mounted.
pub fn mounted_cgroup2() -> Option<PathBuf> {
    // A mount that another one covers is still in the list.
    mounted(&fs::read_to_string(MOUNTS).ok()?).filter(|folder| folder.join("cgroup.controllers").exists())
}

/// The mount point of the cgroup2 hierarchy. Mounts one if there is none.
fn hierarchy() -> Result<PathBuf, KernelError> {
    let mounts = fs::read_to_string(MOUNTS).map_err(KernelError::file(MOUNTS))?;
    if let Some(found) = mounted(&mounts) {
        return Ok(found);
    }
    let made = || -> io::Result<()> {
        fs::create_dir_all(OWN_MOUNT)?;
        Ok(mount("none", OWN_MOUNT, "cgroup2", MountFlags::empty(), None)?)
    };
    made().map_err(|source| KernelError::NoHierarchy { path: OWN_MOUNT.into(), source })?;
    Ok(OWN_MOUNT.into())
}

/// The mount point of the first cgroup2 hierarchy in a list of mounts.
fn mounted(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let folder = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| folder.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_hierarchy_is_found_among_mounts() {
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mounted(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mounted("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"), None);
    }

    #[test]
    fn root_cgroup_and_paths_outside_hierarchy_are_refused() {
        for path in ["/", "", "//", "/shop/../..", "/./shop"] {
            let refused = Cgroup::at(path);
            assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{path}: {refused:?}");
        }
    }
}
