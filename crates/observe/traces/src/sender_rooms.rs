use std::{collections::HashMap, sync::Arc};

/// What each sender of spans uses of a store: bytes of spans, and services that have lists since it first named them.
#[derive(Debug, Default)]
pub(crate) struct SenderRooms(HashMap<Arc<str>, SenderRoom>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SenderRoom {
    pub(crate) bytes: usize,
    pub(crate) services: usize,
}

impl SenderRooms {
    pub(crate) fn of(&self, sender: &str) -> SenderRoom {
        self.0.get(sender).copied().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<str>, SenderRoom)> {
        self.0.iter().map(|(sender, room)| (sender, *room))
    }

    pub(crate) fn take(&mut self, sender: &Arc<str>, room: SenderRoom) {
        let used = self.0.entry(Arc::clone(sender)).or_default();
        used.bytes += room.bytes;
        used.services += room.services;
    }

    pub(crate) fn free(&mut self, sender: &str, room: SenderRoom) {
        let Some(used) = self.0.get_mut(sender) else { return };
        used.bytes = used.bytes.saturating_sub(room.bytes);
        used.services = used.services.saturating_sub(room.services);
        if *used == SenderRoom::default() {
            self.0.remove(sender);
        }
    }
}
