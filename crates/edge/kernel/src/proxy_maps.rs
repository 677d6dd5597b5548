//! The proxy's side of the redirection: registers its listener, and looks up the original destinations of
//! callers.
#![allow(unsafe_code, reason = "one option of sockets that no crate here knows")]

use std::{
    io, mem,
    net::{SocketAddr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd as _},
    path::Path,
    process,
    sync::{Mutex, PoisonError},
};

use aya::maps::{Array, HashMap, MapData, SockHash};

use crate::{
    KernelError, bpf_pins,
    cgroup::contains,
    map_layout::{CallerAddress, DestinationValue, ProxyConfig},
    status::attachments,
};

/// `SO_NETNS_COOKIE` of Linux (5.14 and later), which no crate here defines.
const NETNS_COOKIE: libc::c_int = 71;

/// The original destination of a caller's connection.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The address that the caller connected to.
    pub address: SocketAddrV4,
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// Whether the caller's cgroup may reach only services.
    pub only_services: bool,
    /// Whether all data of the connection goes through TCP, so that the kernel sends none of its requests.
    pub by_tcp: bool,
}

/// The maps used by the proxy.
#[derive(Debug)]
pub struct ProxyMaps {
    // The kernel needs no lock, but the Rust type of the map needs `&mut`.
    destinations: Mutex<HashMap<MapData, CallerAddress, DestinationValue>>,
}

impl ProxyMaps {
    /// Opens the maps, and redirects connections to this listener while it is open. Afterwards, until another
    /// proxy listens or the programs are detached, connections fail if `only_services` is set, and are direct
    /// otherwise.
    ///
    /// # Errors
    /// When nothing is attached, the maps cannot be opened, or this process is in an attached cgroup.
    pub fn register(pins: &Path, listener: impl AsFd, only_services: bool) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("the listener", &error);
        bpf_pins::require_own(pins)?;
        keep_out(pins)?;
        let destinations = bpf_pins::map(pins, "destinations")?.try_into().map_err(refused)?;
        let netns_cookie =
            netns_cookie(&listener).map_err(|error| KernelError::refused("SO_NETNS_COOKIE", &error))?;
        let mut config: Array<_, ProxyConfig> = bpf_pins::map(pins, "config")?.try_into().map_err(refused)?;
        let before = config.get(&0, 0).map_err(refused)?;
        let own = ProxyConfig { netns_cookie, pid: process::id(), only_services: only_services.into() };
        config.set(0, own, 0).map_err(refused)?;
        let mut sockets: SockHash<_, u32> = bpf_pins::map(pins, "listener")?.try_into().map_err(refused)?;
        sockets.insert(0, listener.as_fd(), 0).map_err(refused)?;
        // A concurrent `attach` checks for a proxy after it has recorded the cgroup, so at least one of the
        // two sees the other.
        if let Err(refusal) = keep_out(pins) {
            sockets.remove(&0).map_err(refused)?;
            // This proxy never listened, so the earlier proxy's setting stays in force.
            config.set(0, before, 0).map_err(refused)?;
            return Err(refusal);
        }
        Ok(Self { destinations: Mutex::new(destinations) })
    }

    /// Takes the original destination of the connection from this address. `None` if the connection was not
    /// redirected.
    pub fn take(&self, caller: SocketAddr) -> Option<Destination> {
        let SocketAddr::V4(caller) = caller else { return None };
        let key = CallerAddress::from(caller);
        let mut destinations = self.destinations.lock().unwrap_or_else(PoisonError::into_inner);
        let value = destinations.get(&key, 0).ok()?;
        // The entry may have been evicted.
        let _ = destinations.remove(&key);
        let (only_services, by_tcp) = (value.only_services != 0, value.by_tcp != 0);
        Some(Destination { address: value.address(), cookie: value.cookie, only_services, by_tcp })
    }
}

/// Fails if this process is in an attached cgroup, since its own connections would be redirected.
fn keep_out(pins: &Path) -> Result<(), KernelError> {
    let problem = "contains this proxy, whose own connections would be redirected to it";
    own_attachment(pins)?.map_or(Ok(()), |path| Err(KernelError::Cgroup { path, problem }))
}

/// The attached cgroup that contains this process.
///
/// # Errors
/// When nothing is attached, or this user may not read the attachments.
pub fn own_attachment(pins: &Path) -> Result<Option<String>, KernelError> {
    let mut entries = attachments(pins)?.into_iter();
    let own = entries.find(|(_, entry)| contains(entry.path(), process::id()));
    Ok(own.map(|(_, entry)| entry.path().to_owned()))
}

/// The network namespace of a socket.
fn netns_cookie(socket: &impl AsFd) -> io::Result<u64> {
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
