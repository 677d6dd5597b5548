//! Facts from the kernel about the program at the other end of a Unix socket.

#![allow(unsafe_code, reason = "one option of sockets that no crate here knows")]

use std::{
    fs, io, mem,
    os::{
        fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use fairmesh_model::{HOST_NAMESPACE, ProgramFacts};
use tokio::net::UnixStream;

/// Folder where named network namespaces are mounted.
const NAMED_NAMESPACES: &str = "/run/netns";
/// Maximum number of namespace names that are compared.
const MAX_NAMES: usize = 4096;

/// Reads facts about the peer while it provably lives. This detects a reused pid.
pub(super) fn facts(stream: &UnixStream) -> io::Result<ProgramFacts> {
    let peer = stream.peer_cred()?;
    let read = pidfd(stream).and_then(|pidfd| read_alive(&pidfd));
    let (executable, cgroup, network_namespace) = read.unwrap_or_else(|reason| {
        let unread = || Err(reason.clone());
        (unread(), unread(), unread())
    });
    Ok(ProgramFacts { uid: peer.uid(), gid: peer.gid(), executable, cgroup, network_namespace })
}

type Fact = Result<String, String>;

fn read_alive(pidfd: &OwnedFd) -> Result<(Fact, Fact, Fact), String> {
    let pid = pid_of(pidfd)?;
    let proc = Path::new("/proc").join(&pid);
    let why = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "permission denied; give the agent the capability CAP_SYS_PTRACE, or select by uid, gid or cgroup"
                .to_owned()
        }
        _ => error.to_string(),
    };
    let executable = fs::read_link(proc.join("exe")).map_err(why);
    let executable = executable.map(|path| path.to_string_lossy().into_owned());
    let cgroup = fs::read_to_string(proc.join("cgroup")).map_err(why);
    let cgroup = cgroup.and_then(|text| unified_cgroup(&text).ok_or("it is in none of version 2".into()));
    let namespace = identity(&proc.join("ns/net")).and_then(namespace_name).map_err(why);
    // While the process lives, no other process has its pid.
    match pid_of(pidfd)? == pid {
        true => Ok((executable, cgroup, namespace)),
        false => Err("the program has ended".into()),
    }
}

/// The pid of the process; an error once the process has ended.
fn pid_of(pidfd: &OwnedFd) -> Result<String, String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()));
    let info = info.map_err(|error| error.to_string())?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap_or_default().trim();
    match pid.parse::<u32>() {
        // 0 means a process in another pid namespace.
        Ok(number) if number > 0 => Ok(pid.to_owned()),
        Ok(_) => Err("the program is in a pid namespace that the agent does not see".into()),
        Err(_) => Err("the program has ended".into()),
    }
}

/// The path of the cgroup v2 hierarchy in `/proc/PID/cgroup`.
fn unified_cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The name of a network namespace: `host` for the agent's own, or a name in `/run/netns`.
fn namespace_name(namespace: (u64, u64)) -> io::Result<String> {
    if namespace == identity(Path::new("/proc/self/ns/net"))? {
        return Ok(HOST_NAMESPACE.to_owned());
    }
    let Ok(names) = fs::read_dir(NAMED_NAMESPACES) else { return Ok(unnamed()) };
    let named = names.take(MAX_NAMES).flatten().find(|one| identity(&one.path()).ok() == Some(namespace));
    Ok(named.map_or_else(unnamed, |one| one.file_name().to_string_lossy().into_owned()))
}

/// Displayed for unnamed namespaces; no selector can have this name.
fn unnamed() -> String {
    "without a name in /run/netns".to_owned()
}

/// Device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A pidfd of the process that connected.
fn pidfd(socket: &impl AsFd) -> Result<OwnedFd, String> {
    let mut fd: libc::c_int = -1;
    let mut length = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `length` bytes into `fd`, which
    // has this many bytes, and any value of them is valid.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => "this kernel cannot tell (it needs SO_PEERPIDFD, Linux 6.5)".into(),
            _ => format!("the program cannot be found: {error}"),
        });
    }
    // SAFETY: the kernel created this descriptor for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peer_program_is_identified_by_its_unix_socket() {
        let (one, _other) = UnixStream::pair().unwrap();
        let facts = facts(&one).unwrap();
        let own = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        assert_eq!(facts.uid, fs::metadata("/proc/self").unwrap().uid());
        assert_eq!(facts.network_namespace, Ok(HOST_NAMESPACE.to_owned()));
        assert_eq!(facts.executable, Ok(own));
    }

    #[test]
    fn peer_program_uses_cgroup_v2_path() {
        let text = "12:cpu:/other\n0::/system.slice/cart.service\n";
        assert_eq!(unified_cgroup(text).as_deref(), Some("/system.slice/cart.service"));
        assert_eq!(unified_cgroup("1:cpu:/x\n"), None);
    }
}
