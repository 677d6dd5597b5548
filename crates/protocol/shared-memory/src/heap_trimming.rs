//! Returns freed heap memory to the system.

#![allow(unsafe_code, reason = "calls the allocator of the C library")]

/// Returns freed memory to the system if glibc's allocator is in use; otherwise does nothing.
///
/// After a process has read much data that it does not keep, the allocator holds tens of megabytes, because its trim
/// threshold grows with the amount freed. A fixed threshold for the process was rejected: it would apply to every
/// allocation, at the expense of calls.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `int malloc_trim(size_t)` of the C library, which is linked anyway; it may be called by any thread
        // at any time and only affects free memory.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Number of bytes of the allocator's memory that the program uses; `None` if the allocator is not glibc's.
pub fn used() -> Option<usize> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `struct mallinfo2 mallinfo2(void)` of the C library, which is linked anyway; it may be called by any thread
        // at any time and only reads the state of the allocator, under its locks.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks + info.hblkhd)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}
