//! What the allocator keeps of what was freed.

#![allow(unsafe_code, reason = "the allocator is asked through the C library")]

/// Gives back to the system what was freed, where the allocator is that of glibc; nothing happens elsewhere.
///
/// After much was read that is not held, it keeps tens of megabytes: its threshold for giving back grows with what was freed.
/// A threshold of the process was rejected: it would hold for every allocation, and calls would pay for it.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `int malloc_trim(size_t)` of the C library that is linked anyway; it may be called by any thread at any time
        // and touches only what nobody holds.
        unsafe { libc::malloc_trim(0) };
    }
}
