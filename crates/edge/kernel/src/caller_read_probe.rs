//! Finds out how much a caller has read, with the help of the eBPF programs: only they can look into the
//! caller's socket.

use std::{
    fmt, io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    sync::{Mutex, PoisonError},
};

use aya::maps::{Map, MapData, SockHash};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::socket_cookie};

use crate::KernelError;

/// A connection of the proxy to itself. Data sent on it runs the program `look`, which writes its result into
/// the caller's link. `BPF_PROG_RUN` was rejected, because it would require a capability of the proxy.
pub(crate) struct CallerReadProbe {
    asking: TcpStream,
    /// The other end, which receives and discards the data.
    asked: TcpStream,
    cookie: u64,
    /// The map `asking_sockets`, until the socket has entered it.
    sockets: Mutex<Option<SockHash<MapData, u64>>>,
}

impl CallerReadProbe {
    /// Takes the map `asking_sockets`.
    pub(crate) fn open(sockets: Map) -> Result<Self, KernelError> {
        let refused = |error: &dyn std::error::Error| KernelError::refused("map asking_sockets", error);
        let (asking, asked) = connection_to_self().map_err(|error| refused(&error))?;
        let cookie = socket_cookie(&asking).map_err(|error| refused(&io::Error::from(error)))?;
        let sockets: SockHash<_, u64> = sockets.try_into().map_err(|error| refused(&error))?;
        Ok(Self { asking, asked, cookie, sockets: Mutex::new(Some(sockets)) })
    }

    /// Runs the program that records how much the caller with this cookie has read.
    pub(crate) fn look(&self, cookie: u64) {
        self.enter_map();
        // This fails only if the buffer is full; the next attempt then succeeds.
        let _ = send(&self.asking, &cookie.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        while matches!(recv(&self.asked, &mut [0; 512][..], RecvFlags::DONTWAIT), Ok((1.., _))) {}
    }

    /// Puts the socket into the map once there are callers. Earlier, the map may not have its program yet, and a
    /// socket gets the program only when it enters the map.
    fn enter_map(&self) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let entered = sockets.as_mut().map(|sockets| sockets.insert(self.cookie, self.asking.as_fd(), 0));
        if matches!(entered, Some(Ok(()))) {
            *sockets = None;
        }
    }
}

fn connection_to_self() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let asking = TcpStream::connect(listener.local_addr()?)?;
    asking.set_nodelay(true)?;
    let own = asking.local_addr()?;
    loop {
        // Another process may have connected first.
        let (asked, from) = listener.accept()?;
        if from == own {
            return Ok((asking, asked));
        }
    }
}

impl fmt::Debug for CallerReadProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerReadProbe").finish_non_exhaustive()
    }
}
