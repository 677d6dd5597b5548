//! Cgroups (cgroup v1), with or without a CPU quota.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The period of the CPU quota (kernel default), and so the longest pause of a cgroup that has used up its quota.
const PERIOD_US: u64 = 100_000;

/// `cpu.shares` of the cgroups, which applies when the machine is busy. An ordinary process has 1024, so this is as
/// much as the eight processes of this benchmark would get without cgroups. Without it, the machine might not provide
/// the quota.
const SHARES: u64 = 8 * 1024;

/// Cgroups below this process's own cgroup. Dropping it removes them: the processes in them must have been stopped
/// before.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// Created folders, children after their parents.
    made: Vec<PathBuf>,
    /// The top folder in each controller hierarchy, at least one: the first one limits CPU, the last one counts it.
    tops: Vec<PathBuf>,
}

/// A cgroup with a CPU limit for its members.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    /// The cgroup's folder in each hierarchy.
    folders: Vec<PathBuf>,
}

impl Cgroups {
    /// Creates a cgroup below that of this process.
    ///
    /// # Errors
    /// If there is no CPU controller of cgroup v1, or this process may not use it.
    pub(super) fn new() -> Result<Self, String> {
        let read = |file: &str| fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"));
        let tops = tops(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)?;
        Self::below(&tops)
    }

    fn below(tops: &[PathBuf]) -> Result<Self, String> {
        let mut groups = Self { made: Vec::new(), tops: Vec::new() };
        for top in tops {
            let own = top.join(format!("fairmesh-bench-{}", std::process::id()));
            groups.make(&own)?;
            groups.tops.push(own);
        }
        set(&groups.tops[0], "cpu.shares", SHARES)?;
        Ok(groups)
    }

    /// Adds a cgroup with a limit of `allowance` thousandths of a core, if given.
    pub(super) fn add(&mut self, name: &str, allowance: Option<u64>) -> Result<Cgroup, String> {
        let folders: Vec<_> = self.tops.iter().map(|top| top.join(name)).collect();
        for folder in &folders {
            self.make(folder)?;
        }
        if let Some(allowance) = allowance {
            set(&folders[0], "cpu.cfs_period_us", PERIOD_US)?;
            set(&folders[0], "cpu.cfs_quota_us", PERIOD_US * allowance / 1000)?;
        }
        Ok(Cgroup { folders })
    }

    fn make(&mut self, folder: &Path) -> Result<(), String> {
        fs::create_dir(folder).map_err(|e| {
            format!("cannot make the control group {}: {e}; run this as root", folder.display())
        })?;
        self.made.push(folder.into());
        Ok(())
    }
}

impl Cgroup {
    /// The folders, as the value of the command-line option for roles that join the cgroup.
    pub(super) fn list(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        folders.join(",")
    }

    /// Total CPU time of all processes that were ever in the cgroup, in nanoseconds.
    pub(super) fn used_ns(&self) -> Result<u64, String> {
        // Proof: a cgroup has a folder in each hierarchy, and there is at least one hierarchy.
        let file = self.folders[self.folders.len() - 1].join("cpuacct.usage");
        let text = fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        text.trim().parse().map_err(|_| format!("{} says '{}'", file.display(), text.trim()))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // The kernel refuses while a process in the group is exiting.
            let removed = (0..200).any(|_| {
                fs::remove_dir(folder).is_ok() || {
                    thread::sleep(Duration::from_millis(10));
                    false
                }
            });
            if !removed {
                eprintln!("the control group {} is left; remove it with rmdir", folder.display());
            }
        }
    }
}

fn set(folder: &Path, file: &str, value: u64) -> Result<(), String> {
    let file = folder.join(file);
    fs::write(&file, value.to_string()).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// Folders of this process's own cgroup: in the hierarchy that limits CPU and the one that counts it. Both may be the
/// same.
fn tops(mounts: &str, memberships: &str) -> Result<Vec<PathBuf>, String> {
    let find = |controller: &str| {
        top(mounts, memberships, controller).ok_or_else(|| {
            format!(
                "no control group hierarchy of version 1 with the controller '{controller}' is mounted here, \
                 so no server can be throttled"
            )
        })
    };
    let mut tops = vec![find("cpu")?, find("cpuacct")?];
    tops.dedup();
    Ok(tops)
}

/// The folder of this process's own cgroup for `controller`. See proc(5) for the format of both files. A path outside
/// the root of the mount occurs in a container without a cgroup namespace, where the mount itself is the container's
/// cgroup.
fn top(mounts: &str, memberships: &str, controller: &str) -> Option<PathBuf> {
    let has = |names: &str| names.split(',').any(|name| name == controller);
    let (root, at) = mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let mut place = place.split(' ').skip(3);
        (kind == "cgroup" && has(options)).then_some((place.next()?, place.next()?))
    })?;
    let path = memberships.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        has(names).then_some(path)
    })?;
    Some(Path::new(at).join(Path::new(path).strip_prefix(root).unwrap_or(Path::new(""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu\n\
        33 31 0:30 /pod /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn new_cgroups_go_under_own_cgroup_of_each_v1_controller() {
        let found = tops(MOUNTS, "2:cpuacct:/pod/a\n1:cpu:/b\n0::/c\n");
        assert_eq!(found, Ok(vec!["/sys/fs/cgroup/cpu/b".into(), "/sys/fs/cgroup/cpuacct/a".into()]));
        let together = MOUNTS.replace("rw,cpu\n", "rw,cpu,cpuacct\n");
        let found = tops(&together, "2:cpu,cpuacct:/\n0::/\n");
        assert_eq!(found, Ok(vec!["/sys/fs/cgroup/cpu/".into()]));
    }

    #[test]
    fn system_without_v1_cpu_controller_is_reported() {
        let problem = tops("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/\n").unwrap_err();
        assert!(problem.contains("version 1 with the controller 'cpu'"), "{problem}");
        let folder = tempfile::tempdir().unwrap();
        let problem = Cgroups::below(&[folder.path().join("missing")]).unwrap_err();
        assert!(problem.contains("cannot make the control group"), "{problem}");
    }

    #[test]
    fn dropped_cgroups_are_removed_from_system() {
        let folder = tempfile::tempdir().unwrap();
        let mut groups = Cgroups::below(&[folder.path().into()]).unwrap();
        // The kernel would create these files with the cgroup and remove them with it.
        let group = groups.add("a", Some(200)).unwrap();
        for (file, says) in [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "20000")] {
            let file = group.folders[0].join(file);
            assert_eq!(fs::read_to_string(&file).unwrap(), says);
            fs::remove_file(file).unwrap();
        }
        fs::remove_file(groups.tops[0].join("cpu.shares")).unwrap();
        drop(groups);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
