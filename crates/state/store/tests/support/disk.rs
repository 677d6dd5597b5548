//! An in-memory disk that tracks unsynced writes. A power failure drops, keeps or tears them.

use std::{
    io,
    sync::{Arc, Mutex},
};

use fairmesh_store::RedbStore;
use redb::StorageBackend;

use super::Random;

const SECTOR: usize = 512;

/// What happens to unsynced writes on a power failure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// All unsynced writes are lost.
    Everything,
    /// Each sector of an unsynced write is either written or lost.
    Some,
}

#[derive(Debug, Default)]
struct State {
    /// Contents that survive a power failure.
    durable: Vec<u8>,
    /// Contents as seen by a running process.
    live: Vec<u8>,
    unsynced: Vec<Change>,
    /// Number of calls until the power fails.
    fuse: Option<u64>,
    full: bool,
    healthy_syncs: usize,
    failing_syncs: usize,
    lying_syncs: bool,
    panics: bool,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// The disk; clones share its contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// Opens or creates the store on this disk.
    pub(crate) fn open(&self) -> Result<RedbStore, fairmesh_store::StoreError> {
        let disk = self.clone();
        RedbStore::with_backend("disk", Box::new(move || Ok(Box::new(disk.clone()))))
    }

    /// Cuts the power after `calls` calls: all later calls fail until [`Disk::crash`].
    pub(crate) fn cut_power_after(&self, calls: u64) {
        self.0.lock().unwrap().fuse = Some(calls);
    }

    /// Applies a power failure to the contents, and restores the power.
    pub(crate) fn crash(&self, loss: Loss, random: &mut Random) {
        let state = &mut *self.0.lock().unwrap();
        state.fuse = None;
        for change in std::mem::take(&mut state.unsynced) {
            match (loss, change) {
                (Loss::Everything, _) => {}
                (Loss::Some, Change::Length(length)) => {
                    if random.coin() {
                        state.durable.resize(length, 0);
                    }
                }
                (Loss::Some, Change::Write(offset, data)) => {
                    for (i, sector) in data.chunks(SECTOR).enumerate().filter(|_| random.coin()) {
                        overwrite(&mut state.durable, offset + i * SECTOR, sector);
                    }
                }
            }
        }
        state.live = state.durable.clone();
    }

    /// Sets whether writes fail for lack of space.
    pub(crate) fn set_full(&self, full: bool) {
        self.0.lock().unwrap().full = full;
    }

    /// Lets the next `healthy` syncs succeed and the `failing` syncs after them fail.
    pub(crate) fn fail_syncs(&self, healthy: usize, failing: usize) {
        let mut state = self.0.lock().unwrap();
        (state.healthy_syncs, state.failing_syncs) = (healthy, failing);
    }

    /// Sets whether writes panic, as after a bug in the database.
    pub(crate) fn set_panics(&self, panics: bool) {
        self.0.lock().unwrap().panics = panics;
    }

    /// Makes every sync succeed without effect, as if the store did not sync.
    pub(crate) fn ignore_syncs(&self) {
        self.0.lock().unwrap().lying_syncs = true;
    }

    fn powered(&self) -> io::Result<std::sync::MutexGuard<'_, State>> {
        let mut state = self.0.lock().unwrap();
        match &mut state.fuse {
            Some(0) => return Err(io::Error::other("the power is off")),
            Some(calls) => *calls -= 1,
            None => {}
        }
        Ok(state)
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(data);
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.powered()?.live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.powered()?;
        let from = index(offset);
        let bytes = state.live.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.powered()?;
        if state.full && index(len) > state.live.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.live.resize(index(len), 0);
        state.unsynced.push(Change::Length(index(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.powered()?;
        if state.healthy_syncs > 0 {
            state.healthy_syncs -= 1;
        } else if state.failing_syncs > 0 {
            state.failing_syncs -= 1;
            return Err(io::Error::other("the disk failed the sync"));
        }
        if !state.lying_syncs {
            state.unsynced.clear();
            state.durable.clone_from(&state.live);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // Panics after the lock is released, because a panic under the lock would poison it.
        let panics = self.0.lock().unwrap().panics;
        assert!(!panics, "page 7 is not where it should be");
        let state = &mut *self.powered()?;
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        overwrite(&mut state.live, index(offset), data);
        state.unsynced.push(Change::Write(index(offset), data.to_vec()));
        Ok(())
    }
}
