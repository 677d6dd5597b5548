//! A cgroup for a test, and connections from programs in it.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{self, Command},
};

use fairmesh_kernel::{Attachments, Counter, KernelError, Selection, attach, detach, probe, status};
use fairmesh_test_support::{remove_cgroups, skipped};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A BPF file system and a cgroup for one test, removed on drop.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) cgroup: String,
}

impl Place {
    /// Creates a place. `None`, with a message, if the machine refuses eBPF.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = mount("bpf", folder.path(), "bpf", MountFlags::empty(), None) {
            skipped("eBPF programs cannot be attached", error);
            return None;
        }
        let place = Self { folder, cgroup: format!("/fairmesh-test-{}-{name}", process::id()) };
        let refused = probe(&place.pins()).into_iter().find_map(|check| check.problem);
        if let Some(refused) = refused {
            skipped("eBPF programs cannot be attached", refused);
            return None;
        }
        Some(place)
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.folder.path().join("fairmesh")
    }

    pub(crate) fn attach(
        &self,
        cgroup: &str,
        selection: Selection,
        owner: Option<u32>,
    ) -> Result<u64, KernelError> {
        attach(&self.pins(), &Attachments { owner, ..callers(cgroup, selection) })
    }

    /// Connects from a program in the cgroup, and returns what it received.
    pub(crate) fn connect(&self, to: SocketAddr) -> String {
        Self::connect_from(&self.cgroup, to)
    }

    pub(crate) fn connect_from(cgroup: &str, to: SocketAddr) -> String {
        let enter = enter(cgroup);
        let script = format!("{enter} && exec 3<>/dev/tcp/{}/{} && cat <&3", to.ip(), to.port());
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

/// Default options for attaching a cgroup of callers.
pub(crate) fn callers(cgroup: &str, selection: Selection) -> Attachments {
    Attachments { callers: cgroup.to_owned(), selection, ..Attachments::default() }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = detach(&self.pins());
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        remove_cgroups(&self.cgroup);
    }
}

pub(crate) fn counted(place: &Place, counter: Counter) -> u64 {
    let counters = status(&place.pins()).unwrap().counters;
    counters.into_iter().find(|(one, _)| *one == counter).unwrap().1
}

/// Accepts one connection and sends `greeting`.
pub(crate) fn greet(listener: &TcpListener, greeting: &str) -> SocketAddr {
    let (mut stream, caller) = listener.accept().unwrap();
    stream.write_all(greeting.as_bytes()).unwrap();
    caller
}

/// The directory of a cgroup.
pub(crate) fn folder_of(cgroup: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).unwrap();
    PathBuf::from(format!("{}{cgroup}", mount.split(' ').nth(1).unwrap()))
}

/// Shell command that enters a cgroup, and creates it if it is missing.
pub(crate) fn enter(cgroup: &str) -> String {
    let mount = "$(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/self/mounts)";
    format!("folder={mount}{cgroup} && mkdir -p $folder && echo $$ > $folder/cgroup.procs")
}
