//! Blocks of balancer statistics in memory shared with the eBPF programs, which update them too.
#![allow(unsafe_code, reason = "the programs share this memory")]

use std::{
    fmt,
    fs::File,
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::Map;
use fairmesh_balancer::{SharedBlock, SharedStats};

use crate::{
    KernelError,
    connection_slots::program_clock,
    free_positions::FreePositions,
    map_layout::SERVICES,
    mapped_array::{Mapped, SharedValue},
};

// SAFETY: the type consists of atomics alone.
unsafe impl SharedValue for SharedStats {}

/// All blocks. They stay mapped until the last service using a block is gone, even if the maps are removed.
pub(crate) struct BlockTable {
    blocks: Mapped<SharedStats>,
    free: Mutex<FreePositions>,
    /// Lock that keeps other processes from counting in the same memory. `None` once this process counts in no block.
    lock: Mutex<Option<File>>,
}

/// An allocated block.
#[derive(Debug)]
struct Block {
    table: Arc<BlockTable>,
    position: u32,
}

impl BlockTable {
    pub(crate) fn open(map: &Map, lock: File) -> Result<Self, KernelError> {
        let blocks = Mapped::open(map, SERVICES as usize)?;
        // An earlier proxy released its blocks after their quarantine, or was killed. Either way its
        // connections are closed.
        let free = FreePositions::new(0..SERVICES, |_| false, program_clock());
        Ok(Self { blocks, free: Mutex::new(free), lock: Mutex::new(Some(lock)) })
    }

    /// Releases the maps to another process. No service may still count in a block.
    pub(crate) fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Allocates a block; `None` while all are in use or in quarantine.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Box<dyn SharedBlock>> {
        let position = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(program_clock())?;
        Some(Box::new(Block { table: Arc::clone(self), position }))
    }

    /// Whether `stats` lies in the memory of these blocks.
    pub(crate) fn contains(&self, stats: &SharedStats) -> bool {
        self.blocks.as_ptr_range().contains(&std::ptr::from_ref(stats))
    }
}

impl SharedBlock for Block {
    fn stats(&self) -> &SharedStats {
        &self.table.blocks[self.position as usize]
    }

    fn position(&self) -> u32 {
        self.position
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.give_back(self.position, program_clock());
    }
}

impl fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTable").finish_non_exhaustive()
    }
}
