//! Cgroups v1 and v2, from `/proc` and `/sys/fs/cgroup`.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// The cgroup that accounts for a program's CPU time.
#[derive(Debug)]
pub(super) struct Cgroup {
    version: Version,
    /// Directory of the cgroup.
    folder: PathBuf,
}

/// The CPU quotas of a program.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Per hierarchy: its version, the directory of the program's cgroup, and the topmost directory. A machine may
    /// have both versions, of which only one sets limits.
    folders: Vec<(Version, PathBuf, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted cgroup hierarchy.
struct Mount {
    /// The mounted part of the hierarchy.
    root: String,
    at: PathBuf,
}

impl Cgroup {
    /// Finds the cgroup of a process, unless it is the root cgroup, which contains the whole machine.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn find(proc: &Path, pid: u32) -> Result<Self, String> {
        let (memberships, mounts) = tables(proc, pid)?;
        find_v2(&memberships, &mounts)
            .or_else(|| find_v1(&memberships, &mounts))
            .ok_or_else(|| "neither cgroup v2 (cpu.stat) nor v1 (cpuacct.usage) shows one of its own".into())
    }

    /// Total CPU time, in microseconds.
    pub(super) fn used_us(&self) -> Option<u64> {
        match self.version {
            Version::V2 => {
                let stat = fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
                stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
            }
            Version::V1 => {
                number(&self.folder.join("cpuacct.usage")).map(|nanos| nanos.cast_unsigned() / 1000)
            }
        }
    }

    /// The processes in the group.
    pub(super) fn members(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Limits {
    /// Finds the directories with the quotas of a process, if any.
    pub(super) fn find(proc: &Path, pid: u32) -> Self {
        let Ok((memberships, mounts)) = tables(proc, pid) else { return Self::default() };
        let v2 = unified(&memberships, &mounts).map(|(own, top)| (Version::V2, own, top));
        let v1 = controller("cpu", &memberships, &mounts).map(|(own, top)| (Version::V1, own, top));
        Self { folders: v2.into_iter().chain(v1).collect() }
    }

    /// The smallest quota of the group and its ancestors, in thousandths of a core; `None` without a quota.
    pub(super) fn millicores(&self) -> Option<u32> {
        let quotas = self.folders.iter().flat_map(|(version, own, top)| {
            let folders = own.ancestors().take_while(move |folder| folder.starts_with(top));
            folders.filter_map(|folder| quota(*version, folder))
        });
        quotas.min()
    }
}

/// Reads the group memberships of a process, and the mounts.
fn tables(proc: &Path, pid: u32) -> Result<(String, String), String> {
    let read = |path: PathBuf| {
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    Ok((read(proc.join(pid.to_string()).join("cgroup"))?, read(proc.join("self/mountinfo"))?))
}

fn find_v2(memberships: &str, mounts: &str) -> Option<Cgroup> {
    let (folder, _) = unified(memberships, mounts)?;
    // The root cgroup has no `cgroup.events`, since it cannot be emptied.
    let own = folder.join("cgroup.events").exists();
    let found = Cgroup { version: Version::V2, folder };
    (own && found.used_us().is_some()).then_some(found)
}

fn find_v1(memberships: &str, mounts: &str) -> Option<Cgroup> {
    let (folder, _) = controller("cpuacct", memberships, mounts)?;
    // Only the root of a hierarchy has a release agent.
    let own = !folder.join("release_agent").exists();
    let found = Cgroup { version: Version::V1, folder };
    (own && found.used_us().is_some()).then_some(found)
}

/// The group in the cgroup v2 hierarchy, and its mount point.
fn unified(memberships: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let path = memberships.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mount(mounts, |kind, _| kind == "cgroup2")?;
    Some((mount.folder(path)?, mount.at))
}

/// The group in the cgroup v1 hierarchy with this controller, and its mount point.
fn controller(name: &str, memberships: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let has = |names: &str| names.split(',').any(|other| other == name);
    let path = memberships.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        has(names).then_some(path)
    })?;
    let mount = mount(mounts, |kind, options| kind == "cgroup" && has(options))?;
    Some((mount.folder(path)?, mount.at))
}

/// Finds a mount by file system type and options; see proc(5) for the format.
fn mount(mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<Mount> {
    mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        wanted(kind, options).then(|| Mount { root: root.into(), at: at.into() })
    })
}

impl Mount {
    /// Returns the directory for a path in the hierarchy. A container without its own cgroup namespace shows its path
    /// on the host; its cgroup is then the root of the mount.
    fn folder(&self, path: &str) -> Option<PathBuf> {
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let below = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        let folder = self.at.join(below);
        folder.is_dir().then_some(folder)
    }
}

/// Reads the quota of a group, in thousandths of a core.
fn quota(version: Version, folder: &Path) -> Option<u32> {
    let (quota, period) = match version {
        Version::V2 => {
            let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            // "max" is not a number.
            (quota.parse().ok()?, period.parse().ok()?)
        }
        Version::V1 => {
            (number(&folder.join("cpu.cfs_quota_us"))?, number(&folder.join("cpu.cfs_period_us"))?)
        }
    };
    // -1 means no quota in cgroup v1.
    if quota <= 0 || period <= 0 {
        return None;
    }
    u32::try_from(quota.saturating_mul(1000) / period).ok()
}

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version == Version::V1 { "v1" } else { "v2" };
        write!(f, "{} ({version})", self.folder.display())
    }
}
