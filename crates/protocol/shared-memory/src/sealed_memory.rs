//! Sealed memory, accessible as a slice.

#![allow(unsafe_code, reason = "shared memory is mapped through raw pointers")]

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
    param::page_size,
};

/// Required seals, which guarantee that checked content cannot change.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Maximum size of memory that is accepted from another process, in bytes.
const MAX_BYTES: u64 = 1 << 32;

/// Size of a large page on common machines: 512 pages that share one page table entry. On machines with another size,
/// this alignment has neither benefit nor cost.
const LARGE_PAGE: usize = 2 << 20;

/// Number of words per write.
const WORDS_PER_WRITE: usize = 8192;

/// Immutable shared memory, unmapped on drop.
pub struct SealedMemory {
    /// Invariants: points to `len` bytes of a mapping that this value owns, which is readable and never written, since
    /// the file behind it has [`SEALS`]; `len` is above zero and a multiple of 8; the address is page-aligned.
    start: NonNull<u8>,
    len: usize,
    /// Descriptor of the memory. Only the creator keeps it, to pass it on.
    file: Option<OwnedFd>,
}

// SAFETY: the memory behind the pointer is never written, so that any thread may read it at any time, and the mapping
// belongs to the process and not to a thread.
unsafe impl Send for SealedMemory {}
// SAFETY: as above.
unsafe impl Sync for SealedMemory {}

/// Why memory from another process is rejected.
#[derive(Debug)]
pub enum SharedMemoryError {
    /// The memory could still be changed.
    Seals,
    /// The memory is empty, too large, or not a whole number of words.
    Size(u64),
    /// The system call failed.
    Failed(io::Error),
}

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seals => {
                f.write_str("the shared memory is not sealed, so that it could change while it is read")
            }
            Self::Size(size) => {
                write!(f, "the shared memory has {size} bytes, which is not the size of a table")
            }
            Self::Failed(error) => write!(f, "the shared memory cannot be mapped: {error}"),
        }
    }
}

impl std::error::Error for SharedMemoryError {}

impl SealedMemory {
    /// Seals a copy of these words. `name` appears in `/proc`. Zeros are appended if a large page can be completed by
    /// adding at most a sixteenth.
    ///
    /// # Errors
    /// There is no memory or no file descriptor left.
    pub fn seal_words(name: &str, words: &[u64]) -> io::Result<Self> {
        let mut buffer = Vec::with_capacity(words.len().min(WORDS_PER_WRITE) * 8);
        let file = create(name)?;
        for some in words.chunks(WORDS_PER_WRITE) {
            buffer.clear();
            some.iter().for_each(|word| buffer.extend_from_slice(&word.to_ne_bytes()));
            write(&file, &buffer)?;
        }
        let (len, whole) = (words.len() * 8, (words.len() * 8).next_multiple_of(LARGE_PAGE));
        if whole - len <= len / 16 {
            rustix::fs::ftruncate(&file, whole as u64)?;
        }
        Self::seal(file)
    }

    /// Seals a copy of these bytes, padded with zeros to whole words.
    ///
    /// # Errors
    /// As for [`seal_words`](Self::seal_words).
    pub fn seal_bytes(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let file = create(name)?;
        write(&file, bytes)?;
        write(&file, &[0; 7][..bytes.len().next_multiple_of(8) - bytes.len()])?;
        Self::seal(file)
    }

    fn seal(file: OwnedFd) -> io::Result<Self> {
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        match Self::map(&file) {
            Ok((start, len)) => {
                into_large_pages(start, len);
                Ok(Self { start, len, file: Some(file) })
            }
            Err(SharedMemoryError::Failed(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Maps memory passed by another process, after checking that it is immutable.
    ///
    /// # Errors
    /// The memory is not sealed, has an invalid size, or cannot be mapped.
    pub fn from_descriptor(file: OwnedFd) -> Result<Self, SharedMemoryError> {
        // The mapping outlives the descriptor. The descriptor is closed, since a process has only a limited number.
        Self::map(&file).map(|(start, len)| Self { start, len, file: None })
    }

    fn map(file: &OwnedFd) -> Result<(NonNull<u8>, usize), SharedMemoryError> {
        // Files that do not support seals return an error here.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| SharedMemoryError::Seals)?;
        if !seals.contains(SEALS) {
            return Err(SharedMemoryError::Seals);
        }
        // Read after the check of the seals, so the size is now constant.
        let size = rustix::fs::fstat(file).map_err(failed)?.st_size.cast_unsigned();
        if size == 0 || size > MAX_BYTES || !size.is_multiple_of(8) {
            return Err(SharedMemoryError::Size(size));
        }
        // At most 4 GB, which fits a usize on any machine that can map this.
        let len = size as usize;
        let start = if len < LARGE_PAGE { map_anywhere(file, len) } else { map_aligned(file, len) };
        Ok((NonNull::new(start.map_err(failed)?.cast()).ok_or(SharedMemoryError::Size(size))?, len))
    }

    /// The descriptor to pass on, if this process created the memory.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl AsRef<[u8]> for SealedMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: by the invariants of `start` and `len`; the slice does not outlive the mapping.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u64]> for SealedMemory {
    fn as_ref(&self) -> &[u64] {
        // SAFETY: as above; a page is aligned for words, and every bit pattern is a valid word.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for SealedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and no slice of it is left. It cannot fail for a valid mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SealedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

type Mapped = Result<*mut std::ffi::c_void, rustix::io::Errno>;

fn map_anywhere(file: &OwnedFd, len: usize) -> Mapped {
    // SAFETY: a new mapping at an address chosen by the kernel affects no other memory.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }
}

/// Maps the memory at an address aligned to a large page; otherwise no large page can be used.
fn map_aligned(file: &OwnedFd, len: usize) -> Mapped {
    let room = len.next_multiple_of(page_size()) + LARGE_PAGE;
    let how = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: as above; the reservation is not accessible.
    let reserved =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), how)? };
    let before = reserved.addr().next_multiple_of(LARGE_PAGE) - reserved.addr();
    let start = reserved.wrapping_byte_add(before);
    let how = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: replaces a part of the reservation: `before` is below the size of a large page.
    let mapped = unsafe { rustix::mm::mmap(start, len, ProtFlags::READ, how, file, 0) };
    let after = before + len.next_multiple_of(page_size());
    // On failure, the whole reservation is unmapped.
    let (left, right) = if mapped.is_ok() { (before, room - after) } else { (room, 0) };
    for (at, len) in [(reserved, left), (reserved.wrapping_byte_add(after), right)] {
        if len > 0 {
            // SAFETY: the unused rest of the reservation, in whole pages, to which no pointer exists.
            let _ = unsafe { rustix::mm::munmap(at, len) };
        }
    }
    mapped
}

/// Moves the mapping into large pages. With small pages, random lookups in tens of megabytes almost always miss the TLB
/// of 1,500 entries, and page walks are a quarter of their cost. Other processes that map the memory benefit too.
/// Requires Linux 6.1 and contiguous memory; failure is ignored. It works regardless of the system's setting for large
/// pages in shared memory, which is "never" almost everywhere.
fn into_large_pages(start: NonNull<u8>, len: usize) {
    let whole = len - len % LARGE_PAGE;
    if whole > 0 {
        // SAFETY: advice on an owned mapping does not change its content.
        unsafe { libc::madvise(start.as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
    }
}

fn create(name: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// Writes through the descriptor rather than a mapping: a file with a writable mapping cannot be sealed.
fn write(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

fn failed(error: rustix::io::Errno) -> SharedMemoryError {
    SharedMemoryError::Failed(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: OwnedFd) -> bool {
        matches!(SealedMemory::from_descriptor(file), Err(SharedMemoryError::Seals))
    }

    #[test]
    fn sealed_memory_is_readable_and_immutable() {
        let made = SealedMemory::seal_words("test", &[1, 2, 3]).unwrap();
        let handle = made.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&handle, 8).is_err(), "it was truncated");
        assert!(rustix::fs::ftruncate(&handle, 80).is_err(), "it grew");
        assert!(rustix::io::pwrite(&handle, &[9], 0).is_err(), "it was written");
        let read = SealedMemory::from_descriptor(handle).unwrap();
        drop(made);
        let words: &[u64] = read.as_ref();
        assert_eq!(words, [1, 2, 3]);
        let bytes = SealedMemory::seal_bytes("test", b"nine bytes").unwrap();
        let all: &[u8] = bytes.as_ref();
        assert_eq!(all, b"nine bytes\0\0\0\0\0\0");
    }

    #[test]
    fn large_sealed_memory_is_aligned_and_padded_to_huge_pages() {
        let large = LARGE_PAGE / 8;
        for (words, expected) in [
            (large - large / 32, large),
            (large - large / 8, large - large / 8),
            (large + 512, large + 512),
            (4 * large - 1, 4 * large),
        ] {
            let made = SealedMemory::seal_words("test", &vec![7; words]).unwrap();
            let read =
                SealedMemory::from_descriptor(made.descriptor().unwrap().try_clone_to_owned().unwrap())
                    .unwrap();
            for sealed in [&made, &read] {
                let all: &[u64] = sealed.as_ref();
                assert_eq!(all.len(), expected);
                assert!(
                    all[..words].iter().all(|word| *word == 7) && all[words..].iter().all(|word| *word == 0)
                );
                assert!(expected < large || all.as_ptr().addr().is_multiple_of(LARGE_PAGE));
            }
        }
    }

    #[test]
    fn unsealed_shared_memory_is_rejected() {
        assert!(refused(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()));
        for missing in [SealFlags::SEAL, SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE] {
            let file = create("test").unwrap();
            write(&file, &[0; 64]).unwrap();
            rustix::fs::fcntl_add_seals(&file, SEALS.difference(missing)).unwrap();
            assert!(refused(file), "without {missing:?}");
        }
        assert!(refused(std::fs::File::open("/proc/self/exe").unwrap().into()));
        let empty = create("test").unwrap();
        rustix::fs::fcntl_add_seals(&empty, SEALS).unwrap();
        assert!(matches!(SealedMemory::from_descriptor(empty), Err(SharedMemoryError::Size(0))));
    }
}
