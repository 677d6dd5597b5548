//! Watches a cgroup and the cgroups below it: containers start and end there.

use std::{
    collections::HashMap,
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::{
    KernelError,
    cgroup::{CgroupState, folder_of, state_in, visit_members},
    container::Container,
    network_namespace::{identity, namespace_of},
};

/// A cgroup, those below it, and their programs.
#[derive(Debug)]
pub struct CgroupWatch {
    folder: PathBuf,
    id: u64,
    /// Tells of changes; `None` if nobody asked for them. A user has few of these.
    changes: Option<OwnedFd>,
}

impl CgroupWatch {
    /// Looks at the attached cgroup with this path, such as `/kubepods`, and this id.
    ///
    /// # Errors
    /// When there is no cgroup2 hierarchy.
    pub fn new(path: &str, id: u64) -> Result<Self, KernelError> {
        Ok(Self { folder: folder_of(path)?, id, changes: None })
    }

    /// Watches for changes too, from the first [`find`](Self::find) on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn with_changes(self) -> Result<Self, KernelError> {
        let changes = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let changes = changes.map_err(|error| KernelError::file(&self.folder)(error.into()))?;
        let watch = Self { changes: Some(changes), ..self };
        watch.add(&watch.folder);
        Ok(watch)
    }

    /// Watches for cgroups that are created in this one, and for its first and last program.
    fn add(&self, folder: &Path) {
        let Some(changes) = &self.changes else { return };
        // A cgroup that has just been removed is watched no longer. Other failures delay the containers until the next look.
        let _ = inotify::add_watch(changes, folder, WatchFlags::CREATE);
        let _ = inotify::add_watch(changes, folder.join("cgroup.events"), WatchFlags::MODIFY);
    }

    /// A descriptor that is readable once cgroups were created, or got their first or lost their last program. `None` without
    /// [`with_changes`](Self::with_changes).
    pub fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(|changes| changes.as_fd())
    }

    /// Whether this is the case since the last call.
    pub fn has_changed(&self) -> bool {
        let Some(changes) = &self.changes else { return false };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(changes, &mut buffer);
        let mut has_changed = false;
        while events.next().is_ok() {
            has_changed = true;
        }
        has_changed
    }

    /// What has become of the cgroup.
    pub fn state(&self) -> CgroupState {
        state_in(&self.folder, self.id)
    }

    /// A container for each network namespace of programs below the cgroup that is not `known`: its oldest process, which
    /// mostly lives the longest. From now on, changes of cgroups that exist are noticed too.
    pub fn find(&self, is_known: impl Fn((u64, u64)) -> bool) -> Vec<Container> {
        let mut oldest: HashMap<(u64, u64), (u64, u32)> = HashMap::new();
        visit_members(
            &self.folder,
            |folder| self.add(folder),
            |pid| {
                let namespace = namespace_of(pid).and_then(|namespace| identity(&namespace)).ok();
                let Some(namespace) = namespace.filter(|namespace| !is_known(*namespace)) else { return };
                let Some(started) = start_of(pid) else { return };
                let found = oldest.entry(namespace).or_insert((started, pid));
                *found = (*found).min((started, pid));
            },
        );
        // A process that has ended meanwhile is found no more.
        let found = oldest.into_iter().filter_map(|(namespace, (_, pid))| {
            Container::of(pid).ok().filter(|container| container.namespace() == namespace)
        });
        found.collect()
    }
}

/// When a process started, in ticks since the machine did (proc_pid_stat(5)).
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_start_is_read_after_process_name() {
        let own = start_of(std::process::id()).unwrap();
        assert!(own > 0 && start_of(1).unwrap() <= own);
    }
}
