//! Programs in attached cgroups whose data must pass TCP, because they query the readable length with
//! `FIONREAD`.
//!
//! The eBPF programs recognise them by name when they connect or begin to listen. This module handles those
//! that were already listening before the attachment.

use std::{fs, os::fd::OwnedFd, path::Path};

use aya::{
    Ebpf,
    maps::{MapData, SkStorage},
};
use rustix::{
    net::sockopt::socket_acceptconn,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

use crate::{
    KernelError,
    cgroup::{self, Cgroup},
};

/// Names of programs, as in `bpf/socket/connect.h`. The processes of openresty, tengine and freenginx are also called
/// nginx.
const NAMES: [&str; 2] = ["nginx", "angie"];

/// Names of running programs in or below a cgroup such as `/shop` whose data must pass TCP. Empty if the
/// cgroup cannot be read.
pub fn left_programs(cgroup: &str) -> Vec<String> {
    let found = cgroup::existing(cgroup).map(|folder| processes(&folder));
    let mut names: Vec<_> = found.into_iter().flatten().map(|(_, name)| name.to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Excludes connections that these programs accept on sockets that were already listening.
pub(crate) fn leave_listeners(programs: &mut Ebpf, cgroup: &Cgroup) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map left_listeners", &error);
    let map = programs.map_mut("left_listeners").ok_or(KernelError::NoPrograms)?;
    let mut left: SkStorage<&mut MapData, u32> = map.try_into().map_err(refused)?;
    for (process, _) in processes(&cgroup.folder) {
        listeners(process).iter().try_for_each(|listener| left.insert(listener, 1, 0)).map_err(refused)?;
    }
    Ok(())
}

/// Processes of a cgroup and its descendants, with their names. Processes that have ended are skipped.
fn processes(folder: &Path) -> Vec<(Pid, &'static str)> {
    let mut found = Vec::new();
    let take = |pid: u32| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        found.extend(pid.and_then(|pid| Some((pid, name(pid)?))));
    };
    cgroup::visit_members(folder, |_| {}, take);
    found
}

/// The name of a process, if it is one of [`NAMES`].
fn name(process: Pid) -> Option<&'static str> {
    let own = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero())).ok()?;
    NAMES.into_iter().find(|name| *name == own.trim_end())
}

/// Duplicated descriptors of a process's listening sockets.
fn listeners(process: Pid) -> Vec<OwnedFd> {
    let Ok(opened) = pidfd_open(process, PidfdFlags::empty()) else { return Vec::new() };
    let entries =
        fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number| pidfd_getfd(&opened, number, PidfdGetfdFlags::empty()).ok());
    copies.filter(|copy| socket_acceptconn(copy).unwrap_or(false)).collect()
}
