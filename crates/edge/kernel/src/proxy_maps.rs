//! The proxy's side of the redirection: registers its listener, and looks up the original destinations of
//! callers.

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::AsFd,
    path::Path,
    process,
    sync::{Mutex, PoisonError},
};

use aya::maps::{Array, HashMap, MapData, SockHash};

use crate::{
    ContainerSocket, KernelError, bpf_pins,
    cgroup::contains,
    map_layout::{CallerAddress, DestinationValue, ProxyConfig},
    network_namespace::netns_cookie,
    status::attachments,
};

/// The original destination of a caller's connection.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The address that the caller connected to.
    pub address: SocketAddr,
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// Whether the caller may reach only services: by the setting of its cgroup, or because it is in another network
    /// namespace than the proxy, whose addresses may be those of other servers.
    pub only_services: bool,
    /// Whether all data of the connection goes through TCP, so that the kernel sends none of its requests.
    pub by_tcp: bool,
}

/// The maps used by the proxy.
pub struct ProxyMaps {
    /// The network namespace of the proxy.
    netns_cookie: u64,
    // The kernel needs no lock, but the Rust types of the maps need `&mut`.
    destinations: Mutex<HashMap<MapData, CallerAddress, DestinationValue>>,
    listeners: Mutex<SockHash<MapData, u64>>,
}

impl ProxyMaps {
    /// Opens the maps, and redirects connections to this listener while it is open. Afterwards, until another
    /// proxy listens or the programs are detached, connections fail if `only_services` is set, and are direct
    /// otherwise. Listeners of containers are taken at `containers`.
    ///
    /// # Errors
    /// When nothing is attached, the maps cannot be opened, or this process is in an attached cgroup.
    pub fn register(
        pins: &Path,
        listener: impl AsFd,
        only_services: bool,
        containers: Option<ContainerSocket>,
    ) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("the listener", &error);
        bpf_pins::require_own(pins)?;
        keep_out(pins)?;
        let destinations = bpf_pins::map(pins, "destinations")?.try_into().map_err(refused)?;
        let netns_cookie =
            netns_cookie(&listener).map_err(|error| KernelError::refused("SO_NETNS_COOKIE", &error))?;
        let mut config: Array<_, ProxyConfig> = bpf_pins::map(pins, "config")?.try_into().map_err(refused)?;
        let before = config.get(&0, 0).map_err(refused)?;
        let own = ProxyConfig {
            netns_cookie,
            pid: process::id(),
            only_services: only_services.into(),
            container_socket: containers.map_or(0, ContainerSocket::recorded),
            unused: 0,
        };
        config.set(0, own, 0).map_err(refused)?;
        let mut listeners: SockHash<_, u64> =
            bpf_pins::map(pins, "listeners")?.try_into().map_err(refused)?;
        listeners.insert(netns_cookie, listener.as_fd(), 0).map_err(refused)?;
        // A concurrent `attach` checks for a proxy after it has recorded the cgroup, so at least one of the
        // two sees the other.
        if let Err(refusal) = keep_out(pins) {
            listeners.remove(&netns_cookie).map_err(refused)?;
            // This proxy never listened, so the earlier proxy's setting stays in force.
            config.set(0, before, 0).map_err(refused)?;
            return Err(refusal);
        }
        let listeners = Mutex::new(listeners);
        Ok(Self { netns_cookie, destinations: Mutex::new(destinations), listeners })
    }

    /// Redirects connections of another network namespace to this listener in it while the listener is open, in place of an
    /// earlier one. Returns the namespace's number.
    ///
    /// # Errors
    /// When the listener is in the proxy's own namespace, or the kernel refuses.
    pub fn add_listener(&self, listener: impl AsFd) -> Result<u64, KernelError> {
        let refused =
            |error: &dyn std::error::Error| KernelError::refused("the listener of a container", error);
        let netns_cookie = netns_cookie(&listener).map_err(|error| refused(&error))?;
        if netns_cookie == self.netns_cookie {
            return Err(refused(&io::Error::other("it is in the network namespace of the proxy")));
        }
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.insert(netns_cookie, listener.as_fd(), 0).map_err(|error| refused(&error))?;
        Ok(netns_cookie)
    }

    /// Takes the original destination of the connection from this address in the network namespace of `socket`. `None` if
    /// the connection was not redirected.
    pub fn take(&self, socket: impl AsFd, caller: SocketAddr) -> Option<Destination> {
        let netns_cookie = netns_cookie(&socket).ok()?;
        let key = CallerAddress::of(caller, netns_cookie)?;
        let mut destinations = self.destinations.lock().unwrap_or_else(PoisonError::into_inner);
        let value = destinations.get(&key, 0).ok()?;
        // The entry may have been evicted.
        let _ = destinations.remove(&key);
        let only_services = value.only_services != 0 || netns_cookie != self.netns_cookie;
        let by_tcp = value.by_tcp != 0;
        Some(Destination { address: value.address(), cookie: value.cookie, only_services, by_tcp })
    }
}

impl fmt::Debug for ProxyMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyMaps").field("netns_cookie", &self.netns_cookie).finish_non_exhaustive()
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
