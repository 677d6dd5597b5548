//! Counts requests in flight in the kernel, by the callers' cgroup.
//!
//! A request counts from just before the kernel claims a connection for it, until the kernel or the proxy
//! takes the group's position out of the slot. That happens exactly once, even if a proxy was killed: the
//! next proxy releases the slots left over.
#![allow(unsafe_code, reason = "the counts are shared memory")]

use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use aya::maps::Map;

use crate::{
    KernelError,
    map_layout::{ATTACHMENTS, AttachmentValue, CALLERS, GroupValue, SlotValue},
    mapped_array::{Mapped, SharedValue},
};

// SAFETY: the fields are atomics, and integers that this process does not use.
unsafe impl SharedValue for GroupValue {}

/// The counts of all cgroups.
#[derive(Debug)]
pub(crate) struct Groups(Mapped<GroupValue>);

impl Groups {
    pub(crate) fn open(groups: &Map) -> Result<Self, KernelError> {
        Mapped::open(groups, ATTACHMENTS as usize).map(Self)
    }

    /// Counts the request in this slot as ended.
    pub(crate) fn end_request(&self, slot: &SlotValue) {
        let position = slot.group.swap(0, AcqRel).checked_sub(1);
        if let Some(group) = position.and_then(|position| self.0.get(position as usize)) {
            group.in_flight.fetch_sub(1, AcqRel);
        }
    }

    /// Sets the limit of requests in flight; 0 sets none.
    pub(crate) fn limit(&self, position: u32, most: u32) {
        if let Some(group) = self.0.get(position as usize) {
            group.most.store(most, Relaxed);
        }
    }

    /// Number of the callers' connections in the maps.
    pub(crate) fn connections(&self, position: u32) -> u32 {
        self.0.get(position as usize).map_or(0, |group| group.connections.load(Relaxed))
    }

    /// Whether no connection and no request counts at this position.
    pub(crate) fn is_idle(&self, position: u32) -> bool {
        self.connections(position) == 0 && self.in_flight(position).0 == 0
    }

    /// Number of requests in flight, and their limit; 0 means no limit.
    pub(crate) fn in_flight(&self, position: u32) -> (u32, u32) {
        let group = self.0.get(position as usize);
        group.map_or((0, 0), |group| (group.in_flight.load(Relaxed), group.most.load(Relaxed)))
    }
}

/// Position of a cgroup's counters: its present position, or the first free one that is not `in_use`. Connections of a cgroup
/// that is detached may still count down.
pub(crate) fn position(
    attachments: &[(u64, AttachmentValue)],
    id: u64,
    in_use: impl Fn(u32) -> bool,
) -> Option<u32> {
    let callers = || attachments.iter().filter(|(_, entry)| entry.roles & CALLERS != 0);
    let own = callers().find(|(one, _)| *one == id).map(|(_, entry)| entry.group);
    let is_free = |at: &u32| callers().all(|(_, entry)| entry.group != *at) && !in_use(*at);
    own.or_else(|| (0..ATTACHMENTS).find(is_free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_cgroup_keeps_position_of_its_in_flight_counts() {
        let entry = |group, roles| AttachmentValue { group, ..AttachmentValue::new("/a", 1, roles).unwrap() };
        let attachments = [(7, entry(0, CALLERS)), (8, entry(2, CALLERS)), (9, entry(1, 2))];
        let found = [7, 8, 9, 10].map(|id| position(&attachments, id, |_| false));
        assert_eq!(found, [Some(0), Some(2), Some(1), Some(1)]);
        let found = [7, 10].map(|id| position(&attachments, id, |at| at < 3));
        assert_eq!(found, [Some(0), Some(3)], "connections still count at 1");
        let all: Vec<_> = (0..ATTACHMENTS).map(|at| (at.into(), entry(at, CALLERS))).collect();
        let found = [5, 1000].map(|id| position(&all, id, |_| false));
        assert_eq!(found, [Some(5), None]);
    }
}
