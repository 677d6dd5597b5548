use std::{
    fmt::Debug,
    iter,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use super::{EndpointStats, HotStats};
use crate::outlier::OutlierState;

/// Number of endpoints per block.
pub const BLOCK_ENDPOINTS: usize = 32;

/// The pick data of a service's first endpoints, in a layout shared with kernel programs: for each endpoint a count of calls and
/// streams (`u32`), a tick (`u32`) and a packed load (`u64`); then the round-robin counter.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct HotBlock {
    pub(crate) hot: [HotStats; BLOCK_ENDPOINTS],
    /// Counter of calls picked by round robin.
    pub(crate) round_robin: AtomicU32,
    unused: [u32; 3],
}

/// A block that other processes read and change too, together with the penalties of failed endpoints.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct SharedStats {
    pub(crate) block: HotBlock,
    penalties: [Penalty; BLOCK_ENDPOINTS],
}

/// The times in an outlier state that picks read.
#[derive(Debug, Default)]
#[repr(C)]
struct Penalty {
    /// End of the ejection, for any reason.
    ejected_until: AtomicU64,
    /// End of the ejection for failed responses, in the future or past.
    failing_until: AtomicU64,
    /// When the endpoint has its full share again.
    ramp_end: AtomicU64,
}

/// Maximum number of times that counts move to other memory. Old memory stays mapped, since readers take no lock.
const MAX_MOVES: usize = 16;

/// A shared block, and the memory that later replaces it.
#[derive(Debug)]
pub(super) struct SharedMemory {
    memory: Box<dyn SharedBlock>,
    later: OnceLock<Box<SharedMemory>>,
}

/// Memory of this process alone. Counts move here when another process takes over the shared block.
#[derive(Debug, Default)]
struct OwnMemory(SharedStats);

impl SharedBlock for OwnMemory {
    fn stats(&self) -> &SharedStats {
        &self.0
    }

    fn position(&self) -> u32 {
        u32::MAX
    }
}

/// Memory in which other processes count calls too.
pub trait SharedBlock: Debug + Send + Sync {
    /// The memory. Every call returns the same.
    fn stats(&self) -> &SharedStats;
    /// Position of this block among all shared blocks.
    fn position(&self) -> u32;
}

impl SharedStats {
    /// Copies an endpoint's penalty for processes that read only this memory.
    pub(super) fn set_penalty(&self, index: u32, outlier: &OutlierState) {
        let Some(penalty) = self.penalties.get(index as usize) else { return };
        penalty.failing_until.store(outlier.failing_until(), Relaxed);
        penalty.ramp_end.store(outlier.ramp_end(), Relaxed);
        penalty.ejected_until.store(outlier.ejected_until(false), Relaxed);
    }
}

impl HotBlock {
    /// Copies everything from a block in use, and returns the copied counts.
    pub(super) fn copy(&self, from: &Self) -> [u32; BLOCK_ENDPOINTS] {
        self.round_robin.store(from.round_robin.load(Relaxed), Relaxed);
        let mut counts = [0; BLOCK_ENDPOINTS];
        for (count, (new, old)) in counts.iter_mut().zip(self.hot.iter().zip(&from.hot)) {
            *count = new.copy(old);
        }
        counts
    }

    /// Adds calls that began or ended in the other block after its counts were copied.
    pub(super) fn add_missed(&self, from: &Self, copied: &[u32; BLOCK_ENDPOINTS]) {
        for (count, (new, old)) in copied.iter().zip(self.hot.iter().zip(&from.hot)) {
            new.add_missed(old, *count);
        }
    }
}

impl SharedMemory {
    fn newest(&self) -> &Self {
        iter::successors(Some(self), |one| one.later.get().map(|later| &**later)).last().unwrap_or(self)
    }

    fn moves(&self) -> usize {
        iter::successors(Some(self), |one| one.later.get().map(|later| &**later)).count()
    }
}

impl EndpointStats {
    /// Counts in this shared memory from now on, and returns it. If an earlier shared block is still in use, keeps and
    /// returns that block instead. Returns `None` if the memory is unavailable or counts have moved too often.
    pub fn share(
        &self,
        is_in_use: impl Fn(&dyn SharedBlock) -> bool,
        memory: impl FnOnce() -> Option<Box<dyn SharedBlock>>,
    ) -> Option<&dyn SharedBlock> {
        if self.shared().is_none_or(|shared| !is_in_use(shared)) {
            let has_room = self.shared.get().is_none_or(|first| first.moves() <= MAX_MOVES);
            self.move_counts(has_room.then(memory)??);
        }
        self.shared().filter(|shared| is_in_use(*shared))
    }

    /// Counts in private memory from now on, if `is_shared` holds for the current shared block. Another process may
    /// then use that block.
    pub fn unshare(&self, is_shared: impl Fn(&dyn SharedBlock) -> bool) {
        if self.shared().is_some_and(is_shared) {
            self.move_counts(Box::new(OwnMemory::default()));
        }
    }

    fn move_counts(&self, memory: Box<dyn SharedBlock>) {
        let before = self.block();
        let copied = memory.stats().block.copy(before);
        let next = SharedMemory { memory, later: OnceLock::new() };
        let is_moved = match self.shared.get() {
            None => self.shared.set(next).is_ok(),
            Some(first) => first.newest().later.set(Box::new(next)).is_ok(),
        };
        // If not, another thread has just moved the counts.
        if is_moved {
            self.block().add_missed(before, &copied);
            (0..BLOCK_ENDPOINTS as u32).for_each(|index| self.share_penalty(index));
        }
    }

    fn shared(&self) -> Option<&dyn SharedBlock> {
        self.shared.get().map(|first| &*first.newest().memory)
    }

    /// Publishes an endpoint's changed penalty in the shared memory.
    pub(super) fn share_penalty(&self, index: u32) {
        if let (Some(shared), Some(outlier)) = (self.shared(), self.outlier(index)) {
            shared.stats().set_penalty(index, outlier);
        }
    }

    #[inline]
    pub(super) fn block(&self) -> &HotBlock {
        self.shared().map_or(&self.first, |shared| &shared.stats().block)
    }
}
