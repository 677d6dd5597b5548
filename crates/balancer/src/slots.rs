use crate::Slot;

/// The slots of one service, by index.
#[derive(Debug, Default)]
pub struct Slots {
    first: Slot,
}

/// Keeps the indices of one snapshot from being given to other instances.
#[derive(Clone, Debug)]
pub struct Lease;

impl Slots {
    /// The slot at `index`.
    pub fn slot(&self, _index: u32) -> &Slot {
        &self.first
    }
}
