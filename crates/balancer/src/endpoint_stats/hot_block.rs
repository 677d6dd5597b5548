use std::{
    fmt::Debug,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use super::HotStats;

/// Endpoints of one [`HotBlock`].
pub const BLOCK_ENDPOINTS: usize = 32;

/// What a pick reads of the first endpoints of a service, in a layout that programs in the kernel share: for each endpoint a count of
/// calls and streams (`u32`), a tick (`u32`) and a packed load (`u64`); then the round-robin counter.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct HotBlock {
    pub(crate) hot: [HotStats; BLOCK_ENDPOINTS],
    /// Number of round-robin calls begun.
    pub(crate) round_robin: AtomicU32,
    unused: [u32; 3],
}

/// Memory in which others count calls too.
pub trait SharedBlock: Debug + Send + Sync {
    /// The memory, the same each time.
    fn block(&self) -> &HotBlock;
    /// Its position among other such memory.
    fn position(&self) -> u32;
}

impl HotBlock {
    /// Copies everything from a block that is in use; returns the counts that were copied.
    pub(super) fn copy(&self, from: &Self) -> [u32; BLOCK_ENDPOINTS] {
        self.round_robin.store(from.round_robin.load(Relaxed), Relaxed);
        let mut counts = [0; BLOCK_ENDPOINTS];
        for (count, (new, old)) in counts.iter_mut().zip(self.hot.iter().zip(&from.hot)) {
            *count = new.copy(old);
        }
        counts
    }

    /// Adds calls that began or ended in the other block since these counts were copied.
    pub(super) fn add_missed(&self, from: &Self, copied: &[u32; BLOCK_ENDPOINTS]) {
        for (count, (new, old)) in copied.iter().zip(self.hot.iter().zip(&from.hot)) {
            new.add_missed(old, *count);
        }
    }
}
