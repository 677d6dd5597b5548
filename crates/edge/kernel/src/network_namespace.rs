//! Network namespaces: which one a socket belongs to, and sockets in those of other processes.
#![allow(unsafe_code, reason = "one option of sockets that no crate here knows")]

use std::{
    fs::File,
    io, mem,
    os::fd::{AsFd, AsRawFd as _},
    os::unix::fs::MetadataExt as _,
    panic::resume_unwind,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `SO_NETNS_COOKIE` of Linux (5.14 and later), which no crate here defines.
const NETNS_COOKIE: libc::c_int = 71;

/// The kernel's number of a socket's network namespace. No other namespace gets it before the machine restarts.
pub(crate) fn netns_cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: the borrowed descriptor is open. The kernel writes at most `length` bytes into `cookie`, which has that size and
    // accepts any bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The network namespace of a process.
pub(crate) fn namespace_of(process: u32) -> io::Result<File> {
    File::open(format!("/proc/{process}/ns/net"))
}

/// What tells a namespace from all others that exist at the same time.
pub(crate) fn identity(namespace: &File) -> io::Result<(u64, u64)> {
    namespace.metadata().map(|file| (file.dev(), file.ino()))
}

/// Runs a function on a thread of its own in a namespace. The sockets that it opens stay there. Only this thread enters the
/// namespace, so the process's other sockets do not change.
pub(crate) fn within<T: Send>(
    namespace: &File,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        there.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
