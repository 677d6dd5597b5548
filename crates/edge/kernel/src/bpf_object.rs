//! The compiled eBPF programs.

use std::path::Path;

use aya::{
    Ebpf, EbpfLoader,
    maps::Array,
    programs::{CgroupSockAddr, SkMsg, SockOps},
};

use crate::{KernelError, bpf_pins::LAYOUT, map_layout::SelectionValue};

/// The compiled programs. Aligned, since aya parses the object in place.
#[cfg(has_programs)]
static OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairmesh.bpf.o")));
#[cfg(not(has_programs))]
static OBJECT: Option<&[u8]> = None;

/// Programs on connections, in the order in which they are attached. The programs that redirect come last.
pub(crate) const ADDRESS_PROGRAMS: [&str; 4] = ["getpeername4", "getpeername6", "connect4", "connect6"];
/// Program that registers connections in the maps of both sides.
pub(crate) const TRACK: &str = "track";
/// Program that handles the callers' sends.
pub(crate) const SEND: &str = "send";
/// Program that handles the proxy's sends to callers.
pub(crate) const SHORT_CUT: &str = "short_cut";
/// Program that handles the proxy's sends to servers.
pub(crate) const FORWARD: &str = "forward";
/// Program that looks into callers' sockets for the proxy.
pub(crate) const LOOK: &str = "look";
/// Programs of servers: on accepted connections, and on sends.
pub(crate) const ACCEPTED: &str = "accepted";
pub(crate) const RESPOND: &str = "respond";
/// Names of all programs.
pub(crate) const PROGRAMS: [&str; 11] = [
    "getpeername4",
    "getpeername6",
    "connect4",
    "connect6",
    TRACK,
    SEND,
    SHORT_CUT,
    FORWARD,
    LOOK,
    ACCEPTED,
    RESPOND,
];

/// Constants compiled into one cgroup's caller programs.
#[derive(Debug, Default)]
pub(crate) struct CallerProgram {
    /// The connects to redirect.
    pub(crate) selection: SelectionValue,
    /// Position of the cgroup's counters.
    pub(crate) group: u32,
}

/// Creates the maps, or opens the maps pinned in this directory.
pub(crate) fn open(pins: &Path, own: &CallerProgram) -> Result<Ebpf, KernelError> {
    let object = OBJECT.ok_or(KernelError::NoPrograms)?;
    let mut loader = EbpfLoader::new();
    let loader = loader.default_map_pin_directory(pins);
    let loader = loader.override_global("selection", &own.selection, true);
    let loader = loader.override_global("own_group", &own.group, true);
    let mut programs = loader.load(object).map_err(|error| KernelError::refused("a map", &error))?;
    let refused = |error| KernelError::refused("map layout", &error);
    let layout = programs.map_mut("layout").ok_or(KernelError::NoPrograms)?;
    Array::try_from(layout).map_err(refused)?.set(0, LAYOUT, 0).map_err(refused)?;
    Ok(programs)
}

/// Loads the program of this name.
pub(crate) fn load(programs: &mut Ebpf, name: &str) -> Result<(), KernelError> {
    let refused = |error: &dyn std::error::Error| KernelError::refused(format!("program {name}"), error);
    let loaded = match name {
        TRACK | ACCEPTED => sock_ops(programs, name)?.load(),
        SEND | RESPOND | SHORT_CUT | FORWARD | LOOK => sk_msg(programs, name)?.load(),
        _ => sock_addr(programs, name)?.load(),
    };
    loaded.map_err(|error| refused(&error))
}

pub(crate) fn sock_addr<'a>(
    programs: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut CgroupSockAddr, KernelError> {
    let program = programs.program_mut(name).ok_or(KernelError::NoPrograms)?;
    program.try_into().map_err(|error| KernelError::refused(name, &error))
}

pub(crate) fn sock_ops<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut SockOps, KernelError> {
    let program = programs.program_mut(name).ok_or(KernelError::NoPrograms)?;
    program.try_into().map_err(|error| KernelError::refused(name, &error))
}

pub(crate) fn sk_msg<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut SkMsg, KernelError> {
    let program = programs.program_mut(name).ok_or(KernelError::NoPrograms)?;
    program.try_into().map_err(|error| KernelError::refused(name, &error))
}
