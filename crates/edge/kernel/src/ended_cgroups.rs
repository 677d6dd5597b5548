//! Detaches cgroups one by one: those of containers, which end while others run.

use std::path::Path;

use crate::{
    KernelError,
    attach::restore,
    bpf_pins::{self, LINK, is_link},
    cgroup_in_flight::Groups,
    command_lock::CommandLock,
    pinned_links,
    status::attachments,
};

/// Detaches the programs from the cgroup with this id. The maps stay, for other cgroups.
///
/// # Errors
/// When the system refuses.
pub fn detach_one(pins: &Path, id: u64) -> Result<(), KernelError> {
    let _lock = CommandLock::take()?;
    remove_one(pins, id)
}

fn remove_one(pins: &Path, id: u64) -> Result<(), KernelError> {
    let prefix = format!("{LINK}{id}-");
    bpf_pins::remove(bpf_pins::list(pins).into_iter().filter(|pin| is_link(pin, &prefix)))?;
    if is_attached(pins, id) { restore(pins, id, None) } else { Ok(()) }
}

/// Whether programs are attached to the cgroup with this id.
pub fn is_attached(pins: &Path, id: u64) -> bool {
    attachments(pins).is_ok_and(|entries| entries.iter().any(|(one, _)| *one == id))
}

/// Whether none of the cgroup's programs has a connection that the programs of this crate count, or a request in flight.
///
/// # Errors
/// When maps cannot be opened.
pub fn is_idle(pins: &Path, id: u64) -> Result<bool, KernelError> {
    let groups = Groups::open(&bpf_pins::map(pins, "groups")?)?;
    let own = attachments(pins)?.into_iter().find(|(one, _)| *one == id);
    Ok(own.is_none_or(|(_, entry)| groups.is_idle(entry.group)))
}

/// Detaches cgroups that were removed while nobody followed them.
pub(crate) fn detach_ended(pins: &Path) -> Result<(), KernelError> {
    let ended = attachments(pins)?.into_iter().map(|(id, _)| id).filter(|id| {
        let prefix = format!("{LINK}{id}-");
        let mut links = bpf_pins::list(pins).into_iter().filter(|pin| is_link(pin, &prefix));
        links.any(|link| pinned_links::leads_nowhere(&link))
    });
    ended.collect::<Vec<_>>().into_iter().try_for_each(|id| remove_one(pins, id))
}
