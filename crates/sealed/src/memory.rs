//! A mapping as a slice.

#![allow(unsafe_code, reason = "memory that is shared between processes is mapped through raw pointers")]

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

/// All that must be sealed so that what was checked once stays as it was.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// The most bytes that are taken from another process.
const MOST_BYTES: u64 = 1 << 32;

/// What the kernel makes one entry of the page table of, where it can: 512 pages. Elsewhere than on the usual machines it has
/// another size, which costs nothing but that nothing is gained.
const LARGE_PAGE: usize = 2 << 20;

/// How many words are written at a time.
const WORDS_AT_ONCE: usize = 8192;

/// Memory that nobody can change. Dropping it lets go of it.
pub struct Sealed {
    /// Invariants: points to `len` bytes of a mapping that is ours, readable, private to nobody and never written, since the
    /// file behind it bears [`SEALS`]; `len` is above zero and a multiple of 8; the address is that of a page.
    start: NonNull<u8>,
    len: usize,
    /// Kept by the maker alone, to hand it over.
    file: Option<OwnedFd>,
}

// SAFETY: the memory behind the pointer is never written by anybody, so that any thread may read it at any time, and the
// mapping belongs to the process and not to a thread.
unsafe impl Send for Sealed {}
// SAFETY: as above.
unsafe impl Sync for Sealed {}

/// Why memory of another process is not taken.
#[derive(Debug)]
pub enum NotSealed {
    /// Somebody may still change it.
    Seals,
    /// It is empty, too large, or no whole number of words.
    Size(u64),
    /// The system refused.
    Failed(io::Error),
}

impl fmt::Display for NotSealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seals => f.write_str(
                "the memory that was handed over is not sealed, so that it could change while it is read",
            ),
            Self::Size(size) => write!(f, "{size} bytes of memory were handed over, which no table has"),
            Self::Failed(error) => write!(f, "the memory that was handed over cannot be mapped: {error}"),
        }
    }
}

impl std::error::Error for NotSealed {}

impl Sealed {
    /// Seals a copy of these words. `name` is for people who look at `/proc`. Where a sixteenth more makes whole large pages,
    /// zeros follow.
    ///
    /// # Errors
    /// When there is no memory, or no file descriptor left.
    pub fn words(name: &str, words: &[u64]) -> io::Result<Self> {
        let mut buffer = Vec::with_capacity(words.len().min(WORDS_AT_ONCE) * 8);
        let file = create(name)?;
        for some in words.chunks(WORDS_AT_ONCE) {
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

    /// Seals a copy of these bytes, filled up to whole words with zeros.
    ///
    /// # Errors
    /// As for words.
    pub fn bytes(name: &str, bytes: &[u8]) -> io::Result<Self> {
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
            Err(NotSealed::Failed(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Maps what another process handed over, once it is certain that nobody can change it any more.
    ///
    /// # Errors
    /// When it is not sealed, of a size that makes no sense, or cannot be mapped.
    pub fn received(file: OwnedFd) -> Result<Self, NotSealed> {
        // The mapping stays without the descriptor, of which a process has only so many.
        Self::map(&file).map(|(start, len)| Self { start, len, file: None })
    }

    fn map(file: &OwnedFd) -> Result<(NonNull<u8>, usize), NotSealed> {
        // Files that cannot be sealed at all answer with an error.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| NotSealed::Seals)?;
        if !seals.contains(SEALS) {
            return Err(NotSealed::Seals);
        }
        // After the seals: from here on it stays what it is.
        let size = rustix::fs::fstat(file).map_err(failed)?.st_size.cast_unsigned();
        if size == 0 || size > MOST_BYTES || !size.is_multiple_of(8) {
            return Err(NotSealed::Size(size));
        }
        // At most 4 GB, which a usize of any machine that maps this holds.
        let len = size as usize;
        let start = if len < LARGE_PAGE { map_anywhere(file, len) } else { map_aligned(file, len) };
        Ok((NonNull::new(start.map_err(failed)?.cast()).ok_or(NotSealed::Size(size))?, len))
    }

    /// What to hand over, where this process made it.
    pub fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl AsRef<[u8]> for Sealed {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: by the invariants of `start` and `len`; the slice lives no longer than the mapping.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u64]> for Sealed {
    fn as_ref(&self) -> &[u64] {
        // SAFETY: as above; a page is aligned for words, and every pattern of bits is one.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it is left. It fails for no mapping that is.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("len", &self.len).finish_non_exhaustive()
    }
}

type Mapped = Result<*mut std::ffi::c_void, rustix::io::Errno>;

fn map_anywhere(file: &OwnedFd, len: usize) -> Mapped {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }
}

/// Maps where a large page can begin; else none could be used.
fn map_aligned(file: &OwnedFd, len: usize) -> Mapped {
    let room = len.next_multiple_of(page_size()) + LARGE_PAGE;
    let how = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: as above; nothing can be read there.
    let reserved =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), how)? };
    let before = reserved.addr().next_multiple_of(LARGE_PAGE) - reserved.addr();
    let start = reserved.wrapping_byte_add(before);
    let how = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: replaces a part of what was reserved just now: `before` is below the size of a large page.
    let mapped = unsafe { rustix::mm::mmap(start, len, ProtFlags::READ, how, file, 0) };
    let after = before + len.next_multiple_of(page_size());
    // All of it goes where it could not be mapped.
    let (left, right) = if mapped.is_ok() { (before, room - after) } else { (room, 0) };
    for (at, len) in [(reserved, left), (reserved.wrapping_byte_add(after), right)] {
        if len > 0 {
            // SAFETY: what was reserved and is not used, in whole pages, of which nobody has an address.
            let _ = unsafe { rustix::mm::munmap(at, len) };
        }
    }
    mapped
}

/// Moves what is mapped into large pages: a look-up at random in tens of megabytes finds hardly an address in the processor's
/// table of 1,500 small pages and walks for each, which is a quarter of what it costs. Others who map it have them too.
/// Needs Linux 6.1, and memory in one piece; all goes on without. It does not need the system's setting for shared memory,
/// which is "never" nearly everywhere.
fn into_large_pages(start: NonNull<u8>, len: usize) {
    let whole = len - len % LARGE_PAGE;
    if whole > 0 {
        // SAFETY: advice on a mapping that is ours changes nothing of what is in it.
        unsafe { libc::madvise(start.as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
    }
}

fn create(name: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// By plain writes and not through a mapping: a file with a writable mapping cannot be sealed.
fn write(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

fn failed(error: rustix::io::Errno) -> NotSealed {
    NotSealed::Failed(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: OwnedFd) -> bool {
        matches!(Sealed::received(file), Err(NotSealed::Seals))
    }

    #[test]
    fn what_is_sealed_is_read_by_others_and_changed_by_nobody() {
        let made = Sealed::words("test", &[1, 2, 3]).unwrap();
        let handle = made.handle().unwrap().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&handle, 8).is_err(), "it was cut short");
        assert!(rustix::fs::ftruncate(&handle, 80).is_err(), "it grew");
        assert!(rustix::io::pwrite(&handle, &[9], 0).is_err(), "it was written");
        let read = Sealed::received(handle).unwrap();
        drop(made);
        let words: &[u64] = read.as_ref();
        assert_eq!(words, [1, 2, 3]);
        let bytes = Sealed::bytes("test", b"nine bytes").unwrap();
        let all: &[u8] = bytes.as_ref();
        assert_eq!(all, b"nine bytes\0\0\0\0\0\0");
    }

    #[test]
    fn large_memory_begins_where_a_large_page_can_and_ends_with_zeros_or_where_it_ends() {
        let large = LARGE_PAGE / 8;
        for (words, expected) in [
            (large - large / 32, large),
            (large - large / 8, large - large / 8),
            (large + 512, large + 512),
            (4 * large - 1, 4 * large),
        ] {
            let made = Sealed::words("test", &vec![7; words]).unwrap();
            let read = Sealed::received(made.handle().unwrap().try_clone_to_owned().unwrap()).unwrap();
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
    fn what_could_still_change_is_refused() {
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
        assert!(matches!(Sealed::received(empty), Err(NotSealed::Size(0))));
    }
}
