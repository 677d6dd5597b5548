//! A cgroup with the BPF programs of the kernel form attached. Dropping the value detaches them.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    process,
};

use fairmesh_kernel::{Attachments, Counter, Selection, attach, detach, probe, status};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::report::Report;

/// Virtual addresses that are reachable only through the BPF programs.
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(127, 96, 0, 1);
/// Virtual addresses whose responses take no short cut, for a second set of programs.
const VIRTUAL_BY_TCP: Ipv4Addr = Ipv4Addr::new(127, 97, 0, 1);

pub(super) struct Attached {
    /// A separate BPF file system, so that other programs attached on this machine are not affected.
    folder: tempfile::TempDir,
    pub(super) cgroup: String,
    /// The virtual address that callers use.
    pub(super) address: SocketAddrV4,
}

impl Attached {
    /// Attaches the programs, to servers too if `to_servers`. The error is the system's reason for refusing.
    pub(super) fn new(to_servers: bool) -> Result<Self, String> {
        Self::at(VIRTUAL, to_servers, true)
    }

    /// Attaches the programs, to servers too. If the system refuses, reports `figure` as unmeasured with the reason.
    pub(super) fn or_unmeasured(report: &mut Report, figure: &str) -> Option<Self> {
        Self::new(true).map_err(|why| report.unmeasured(figure, why)).ok()
    }

    /// Attaches a second set of programs without the short cut to the same cgroup.
    pub(super) fn by_tcp() -> Result<Self, String> {
        Self::at(VIRTUAL_BY_TCP, false, false)
    }

    fn at(virtual_ip: Ipv4Addr, to_servers: bool, short_cut: bool) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        mount("bpf", folder.path(), "bpf", MountFlags::empty(), None)
            .map_err(|e| format!("a BPF file system cannot be mounted: {e}"))?;
        let cgroup = format!("/fairmesh-bench-{}", process::id());
        let attached = Self { folder, cgroup, address: SocketAddrV4::new(virtual_ip, 80) };
        if let Some(problem) = probe(&attached.pins()).into_iter().find_map(|check| check.problem) {
            return Err(problem);
        }
        let selection = Selection { networks: vec![(virtual_ip.into(), 16)], ports: vec![80] };
        let servers = to_servers.then(|| attached.cgroup.clone()).into_iter().collect();
        let callers = attached.cgroup.clone();
        let to =
            Attachments { callers, selection, servers, short_cut: Some(short_cut), ..Attachments::default() };
        attach(&attached.pins(), &to).map_err(|e| e.to_string())?;
        Ok(attached)
    }

    pub(super) fn pins(&self) -> PathBuf {
        self.folder.path().join("fairmesh")
    }

    /// Number of requests sent by the kernel.
    pub(super) fn sent(&self) -> Result<u64, String> {
        self.counter(Counter::SentByKernel)
    }

    /// Number of requests that the kernel sent in place of mutual TLS.
    pub(super) fn permitted(&self) -> Result<u64, String> {
        self.counter(Counter::Permitted)
    }

    /// Number of responses that the kernel sent to callers.
    pub(super) fn answered(&self) -> Result<u64, String> {
        self.counter(Counter::AnsweredDirectly)
    }

    /// Numbers of requests that took the short cut to endpoints, of responses back, and of responses to callers.
    pub(super) fn short_cuts(&self) -> Result<[u64; 3], String> {
        Ok([
            self.counter(Counter::ForwardedRequest)?,
            self.counter(Counter::ForwardedResponse)?,
            self.counter(Counter::ShortCut)?,
        ])
    }

    /// Memory of all BPF maps, in bytes.
    pub(super) fn map_bytes(&self) -> Result<u64, String> {
        let memory = status(&self.pins()).map_err(|e| e.to_string())?.memory;
        Ok(memory.into_iter().map(|(_, bytes)| bytes).sum())
    }

    fn counter(&self, which: Counter) -> Result<u64, String> {
        let counters = status(&self.pins()).map_err(|e| e.to_string())?.counters;
        let sent = counters.into_iter().find(|(counter, _)| *counter == which);
        Ok(sent.map_or(0, |(_, count)| count))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.pins()) {
            eprintln!("cannot detach from {}: {error}", self.cgroup);
        }
        // Pins that could not be removed disappear with the file system.
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}
