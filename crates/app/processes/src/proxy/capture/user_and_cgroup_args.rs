//! Arguments that select connections by user or cgroup, and the user of the proxy's listener.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::Path};

use fairmesh_console::{failure::Failure, socket_table};

use super::nft_rules::Cgroup;

/// Folder below which nft resolves cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the user who owns the listeners at all of these addresses in this network namespace; `None` if one of the
/// addresses has no listener.
pub(super) fn listener_uid(at: &[SocketAddr]) -> Option<u32> {
    let user = |at: &SocketAddr| socket_table::listener_at(*at).map(|listener| listener.uid);
    let users: Option<Vec<u32>> = at.iter().map(user).collect();
    users?.first().copied()
}

/// Parses users, given by name or number, into user IDs.
pub(crate) fn uids(named: &[String]) -> Result<BTreeSet<u32>, Failure> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    named.iter().map(|name| uid(name, &users)).collect()
}

fn uid(name: &str, users: &str) -> Result<u32, Failure> {
    let listed = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split(':').nth(1));
    name.parse().ok().or_else(|| listed?.parse().ok()).ok_or_else(|| {
        Failure::refused(format!("there is no user '{name}' in /etc/passwd"), "give another, or a number")
    })
}

/// Resolves the paths of cgroups, which must exist.
pub(super) fn cgroups(paths: &[String]) -> Result<Vec<Cgroup>, Failure> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(root) = root(&mounts) else {
        return Err(Failure::refused(
            format!("there are no cgroups of version 2 at {CGROUPS}, where nft looks for them"),
            "select programs and proxy by user: --uid, --except-uid",
        ));
    };
    paths.iter().map(|path| cgroup(path, &root)).collect()
}

/// Returns the mount point of the cgroup v2 hierarchy.
fn root(mounts: &str) -> Option<String> {
    let of_version_2 = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    let mut places = of_version_2.filter_map(|line| line.split(' ').nth(4));
    places.find(|place| Path::new(place).starts_with(CGROUPS)).map(str::to_owned)
}

fn cgroup(path: &str, root: &str) -> Result<Cgroup, Failure> {
    let inside = path.strip_prefix(root).unwrap_or(path).trim_matches('/');
    let found = Path::new(root).join(inside);
    let plain = !inside.is_empty()
        && !inside.contains(['"', '\n', '\\'])
        && !inside.split('/').any(|part| part == "..");
    if !plain || !found.is_dir() {
        let problem = format!("'{path}' is not a cgroup below {root}");
        let hint = "name one as 'cat /proc/PID/cgroup' does behind '0::', such as /system.slice/fairmesh-proxy.service";
        return Err(Failure::refused(problem, hint));
    }
    // It exists below the mount point, which is below the folder.
    let path = found.strip_prefix(CGROUPS).unwrap_or(&found).to_string_lossy().into_owned();
    Ok(Cgroup { path, level: inside.split('/').count() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_resolves_users_by_name_and_number() {
        let users = "root:x:0:0::/root:/bin/sh\nweb:x:33:33:web:/:/bin/false\n";
        assert_eq!(uid("web", users).unwrap(), 33);
        assert_eq!(uid("1234", users).unwrap(), 1234);
        assert!(uid("we", users).is_err() && uid("", users).is_err());
    }

    #[test]
    fn capture_resolves_cgroups_below_mount_point_of_nft() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                      31 25 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(root(mounts).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(root("31 25 0:27 / /mnt rw - cgroup2 cgroup2 rw\n"), None);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        fs::create_dir_all(folder.path().join("a.slice/b")).unwrap();
        assert_eq!(cgroup("/a.slice/b", root).unwrap().level, 2);
        assert_eq!(cgroup(&format!("{root}/a.slice"), root).unwrap().level, 1);
        for wrong in ["", "/", "c", "a.slice/..", "a\"b"] {
            assert!(cgroup(wrong, root).is_err(), "{wrong}");
        }
    }
}
