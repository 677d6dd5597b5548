//! Storage backends for redb: a file, or a copy-on-write overlay over a backend.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    ops::Bound,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::{BackendError, StorageBackend, backends::FileBackend};

/// Opens the storage of a store. Called again after a failure, because redb gives up a backend that failed once.
pub type OpenBackend = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync>;

/// Opens the existing file at `path`.
pub(super) fn of_file(path: &Path) -> io::Result<Box<dyn StorageBackend>> {
    let file = File::options().read(true).write(true).open(path)?;
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

/// Opens a read-only view of the file at `path` while it is open elsewhere in this process. The view takes no lock
/// and refuses writes.
pub(super) fn open_read_only(path: &Path) -> io::Result<Box<dyn StorageBackend>> {
    Ok(Box::new(ReadOnly(File::open(path)?)))
}

#[derive(Debug)]
struct ReadOnly(File);

impl StorageBackend for ReadOnly {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

/// A storage backend behind a trait object.
#[derive(Debug)]
pub(super) struct BoxedBackend(pub(super) Box<dyn StorageBackend>);

/// A copy-on-write overlay: the backend below is only read, and changes stay in memory. redb writes even to a file
/// that it only verifies, to mark it as in use and to repair it. Writing is unacceptable for a damaged file, and
/// impossible on a full disk.
#[derive(Debug)]
pub(super) struct Overlay {
    below: Box<dyn StorageBackend>,
    changes: Mutex<PageOverlay>,
}

#[derive(Debug)]
struct PageOverlay {
    len: u64,
    /// Changed pages by page number.
    pages: BTreeMap<u64, Box<[u8]>>,
    /// Shortest length since the overlay was created. Bytes beyond this length read as zero unless their page has
    /// changed.
    cut: u64,
}

const PAGE: u64 = 4096;

impl Overlay {
    pub(super) fn new(below: Box<dyn StorageBackend>) -> io::Result<Self> {
        let len = below.len()?;
        Ok(Self { below, changes: Mutex::new(PageOverlay { len, pages: BTreeMap::new(), cut: len }) })
    }

    fn changes(&self) -> MutexGuard<'_, PageOverlay> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current content of a page.
    fn page(&self, changes: &PageOverlay, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(page) = changes.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE as usize].into_boxed_slice();
        let unchanged = changes.cut.saturating_sub(number * PAGE).min(PAGE) as usize;
        if unchanged > 0 {
            self.below.read(number * PAGE, &mut page[..unchanged])?;
        }
        Ok(page)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes();
        if offset.saturating_add(out.len() as u64) > changes.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = offset + out.len() as u64;
        // Nearly all reads are of unchanged pages: this reads the range at once instead of page by page.
        if end <= changes.cut && changes.pages.range(offset / PAGE..end.div_ceil(PAGE)).next().is_none() {
            return self.below.read(offset, out);
        }
        for (number, within, part) in parts(offset, out.len()) {
            let page = self.page(&changes, number)?;
            let size = part.len();
            out[part].copy_from_slice(&page[within..within + size]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes();
        changes.cut = changes.cut.min(len);
        changes.pages.split_off(&len.div_ceil(PAGE));
        if let Some(page) = changes.pages.get_mut(&(len / PAGE)) {
            page[(len % PAGE) as usize..].fill(0);
        }
        changes.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes();
        for (number, within, part) in parts(offset, data.len()) {
            let mut page = self.page(&changes, number)?;
            page[within..within + part.len()].copy_from_slice(&data[part]);
            changes.pages.insert(number, page);
        }
        changes.len = changes.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.below.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.below.unlock_range(start, end)
    }
}

/// Splits a byte range at page boundaries. Yields page number, offset within the page, and the part of the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let size = (PAGE as usize - within).min(len - done);
        let part = done..done + size;
        done += size;
        (size > 0).then_some((at / PAGE, within, part))
    })
}

impl StorageBackend for BoxedBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
