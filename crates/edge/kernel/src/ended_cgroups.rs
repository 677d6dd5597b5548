//! Detaches cgroups one by one: those of containers, which end while others run.
//!
//! The programs that are attached to a cgroup also count its connections, so they stay until the last one has ended: the
//! position of the counters is free from then on.

use std::path::{Path, PathBuf};

use aya::maps::{HashMap, MapError};

use crate::{
    KernelError,
    attach::restore,
    bpf_pins::{self, LINK, is_link},
    cgroup::{CgroupState, state_of},
    cgroup_in_flight::Groups,
    command_lock::CommandLock,
    map_layout::{AttachmentValue, CALLERS, KEPT},
    pinned_links,
    status::attachments,
};

/// Result of an attempt to end an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing is attached any more, or another command than `attach --container` has attached to the cgroup, and it exists.
    Ended,
    /// Programs run in the cgroup, and everything stays attached.
    Populated,
    /// Connections are open or requests in flight, so everything stays attached. A later [`attach`](crate::attach) removes it.
    Connected,
}

/// Detaches the programs from the cgroup with this id, once none of its programs runs and their last connection has ended. The
/// maps stay, for other cgroups.
///
/// # Errors
/// When the system refuses.
pub fn end_attachment(pins: &Path, id: u64) -> Result<Ending, KernelError> {
    let _lock = CommandLock::take()?;
    let Some(entry) = find(pins, id)? else { return Ok(Ending::Ended) };
    match state_of(entry.path(), id) {
        CgroupState::Populated => return Ok(Ending::Populated),
        CgroupState::Empty if entry.roles & KEPT != 0 => return Ok(Ending::Ended),
        _ => {}
    }
    match is_idle(pins, &entry)? {
        true => remove_one(pins, id).map(|()| Ending::Ended),
        false => Ok(Ending::Connected),
    }
}

/// Whether programs are attached to the cgroup with this id.
///
/// # Errors
/// When the maps cannot be read.
pub fn is_attached(pins: &Path, id: u64) -> Result<bool, KernelError> {
    find(pins, id).map(|entry| entry.is_some())
}

fn find(pins: &Path, id: u64) -> Result<Option<AttachmentValue>, KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let entries = match bpf_pins::map(pins, "attachments") {
        Err(KernelError::NotAttached(_)) => return Ok(None),
        entries => entries?,
    };
    let entries: HashMap<_, u64, AttachmentValue> = entries.try_into().map_err(refused)?;
    match entries.get(&id, 0) {
        Err(MapError::KeyNotFound) => Ok(None),
        entry => entry.map(Some).map_err(refused),
    }
}

/// Whether none of the cgroup's programs has a connection that the programs of this crate count, or a request in flight.
fn is_idle(pins: &Path, entry: &AttachmentValue) -> Result<bool, KernelError> {
    let groups = Groups::open(&bpf_pins::map(pins, "groups")?)?;
    Ok(entry.roles & CALLERS == 0 || groups.is_idle(entry.group))
}

/// The pins of a cgroup's links.
fn links_of(pins: &Path, id: u64) -> Vec<PathBuf> {
    let prefix = format!("{LINK}{id}-");
    bpf_pins::list(pins).into_iter().filter(|pin| is_link(pin, &prefix)).collect()
}

fn remove_one(pins: &Path, id: u64) -> Result<(), KernelError> {
    bpf_pins::remove(links_of(pins, id))?;
    if is_attached(pins, id)? { restore(pins, id, None) } else { Ok(()) }
}

/// Detaches cgroups that ended while no command followed them: those that are gone with their last socket, and those of
/// containers that have ended with their last connection.
pub(crate) fn detach_ended(pins: &Path) -> Result<(), KernelError> {
    for (id, entry) in attachments(pins)? {
        let is_gone = links_of(pins, id).iter().any(|link| pinned_links::leads_nowhere(link));
        let is_empty = || entry.roles & KEPT == 0 && state_of(entry.path(), id) == CgroupState::Empty;
        if is_gone || (is_empty() && is_idle(pins, &entry)?) {
            remove_one(pins, id)?;
        }
    }
    Ok(())
}
