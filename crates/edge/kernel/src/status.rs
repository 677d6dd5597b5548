//! Attachments, the listening proxy, and the programs' counters.

use std::{
    collections::HashSet,
    fmt, fs,
    net::IpAddr,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path, PathBuf},
};

use aya::maps::{Array, HashMap, MapData, PerCpuArray, SockHash};

use crate::{
    ContainerSocket, Counter, KernelError,
    bpf_pins::{self, LINK},
    cgroup_in_flight::Groups,
    connection_slots,
    map_layout::{AttachmentValue, CALLERS, ProxyConfig, SERVERS},
};

/// The state of the kernel form: attachments, proxy and counters.
#[derive(Debug)]
pub struct Status {
    /// Directory in which maps and links are pinned.
    pub pins: PathBuf,
    /// The attached cgroups.
    pub attachments: Vec<Attachment>,
    /// The process of the proxy, if one listens.
    pub proxy: Option<u32>,
    /// Number of other network namespaces in which the proxy listens: those of containers.
    pub namespaces: usize,
    /// Whether connections fail while no proxy listens, by the setting of the last proxy.
    pub only_services: bool,
    /// Requests sent by the kernel and awaiting a response.
    pub in_flight: usize,
    /// Counters since the first attachment.
    pub counters: Vec<(Counter, u64)>,
    /// The size of each map in bytes, as the kernel reports it.
    pub memory: Vec<(String, u64)>,
}

/// A cgroup to which the programs are attached.
#[derive(Debug)]
pub struct Attachment {
    /// Path of the cgroup.
    pub cgroup: String,
    /// Id of the cgroup.
    pub id: u64,
    /// Whether the cgroup's connects are redirected.
    pub has_callers: bool,
    /// Redirected networks: an address and a prefix length each. Empty means every address.
    pub networks: Vec<(IpAddr, u8)>,
    /// Redirected ports.
    pub ports: Vec<u16>,
    /// Whether the cgroup's programs may reach only services. Their connections then fail while no proxy
    /// listens.
    pub only_services: bool,
    /// Whether the proxy's responses to these programs take the short cut.
    pub short_cut: bool,
    /// Whether requests are moved directly to servers in the cgroup.
    pub has_servers: bool,
    /// Number of the callers' connections in the maps.
    pub connections: u32,
    /// Requests of the callers sent by the kernel and awaiting a response.
    pub in_flight: u32,
    /// Limit of requests in flight; `None` means no limit.
    pub max_in_flight: Option<NonZeroU32>,
}

/// Reads the state.
///
/// # Errors
/// When nothing is attached, or maps cannot be opened.
pub fn status(pins: &Path) -> Result<Status, KernelError> {
    bpf_pins::require_own(pins)?;
    let groups = Groups::open(&bpf_pins::map(pins, "groups")?)?;
    let entries = attachments(pins)?;
    let short_cut = takes_short_cut(&entries);
    let attachments = entries.into_iter().map(|(id, entry)| {
        let has_callers = entry.roles & CALLERS != 0;
        let (in_flight, most) = if has_callers { groups.in_flight(entry.group) } else { (0, 0) };
        Attachment {
            cgroup: entry.path().to_owned(),
            id,
            has_callers,
            networks: entry.selection.networks(),
            ports: entry.selection.ports(),
            only_services: entry.selection.only_services != 0,
            short_cut: has_callers && short_cut,
            has_servers: entry.roles & SERVERS != 0,
            connections: if has_callers { groups.connections(entry.group) } else { 0 },
            in_flight,
            max_in_flight: NonZeroU32::new(most),
        }
    });
    let mut attachments: Vec<_> = attachments.collect();
    // The entries of the map are unordered.
    attachments.sort_unstable_by(|one: &Attachment, other| one.cgroup.cmp(&other.cgroup));
    let counters = Counters::open(pins)?.read()?;
    let memory = memory(pins)?;
    let in_flight = connection_slots::in_flight(&bpf_pins::map(pins, "slots")?)?;
    let only_services = config(pins).is_some_and(|config| config.only_services != 0);
    let listening = listening(pins);
    let proxy = listening.as_ref().map(|listening| listening.proxy);
    let namespaces = listening.map_or(0, |listening| listening.namespaces.len());
    let pins = pins.to_owned();
    Ok(Status { pins, attachments, proxy, namespaces, only_services, in_flight, counters, memory })
}

/// The memory of each pinned map that this user may open, by name.
fn memory(pins: &Path) -> Result<Vec<(String, u64)>, KernelError> {
    let mut memory = Vec::new();
    for pin in bpf_pins::list(pins) {
        let name = pin.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Links share the directory with the maps.
        if name.starts_with(LINK) {
            continue;
        }
        // One map can be opened only by root.
        let Ok(map) = MapData::from_pin(&pin) else { continue };
        let info = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
        let text = fs::read_to_string(&info).map_err(KernelError::file(info))?;
        let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok());
        memory.push((name, bytes.unwrap_or(0)));
    }
    memory.sort();
    Ok(memory)
}

/// The recorded attachments, by cgroup id.
pub(crate) fn attachments(pins: &Path) -> Result<Vec<(u64, AttachmentValue)>, KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let entries: HashMap<_, u64, AttachmentValue> =
        bpf_pins::map(pins, "attachments")?.try_into().map_err(refused)?;
    entries.iter().collect::<Result<_, _>>().map_err(refused)
}

/// Whether the proxy's responses take the short cut. The setting belongs to the maps, so it is the same for
/// all cgroups.
pub(crate) fn takes_short_cut(entries: &[(u64, AttachmentValue)]) -> bool {
    entries.iter().any(|(_, entry)| entry.short_cut != 0)
}

/// The listeners of the proxy.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The process of the proxy.
    pub proxy: u32,
    /// Numbers of the other network namespaces in which a proxy listens. During an upgrade, the predecessor may still own a
    /// listener.
    pub namespaces: HashSet<u64>,
    /// Where the proxy takes listeners of containers.
    pub container_socket: Option<ContainerSocket>,
}

/// The listeners of the proxy; `None` while no proxy listens in its own network namespace, or if nothing is attached. A closed
/// socket leaves the map.
pub fn listening(pins: &Path) -> Option<Listening> {
    let sockets: SockHash<_, u64> = bpf_pins::map(pins, "listeners").ok()?.try_into().ok()?;
    let config = config(pins)?;
    let mut namespaces: HashSet<_> = sockets.keys().filter_map(Result::ok).collect();
    let container_socket = ContainerSocket::of_recorded(config.container_socket);
    let is_listening = namespaces.remove(&config.netns_cookie);
    is_listening.then_some(Listening { proxy: config.pid, namespaces, container_socket })
}

/// The process of the listening proxy.
pub(crate) fn proxy_process(pins: &Path) -> Option<u32> {
    listening(pins).map(|listening| listening.proxy)
}

/// The configuration recorded by the last proxy.
fn config(pins: &Path) -> Option<ProxyConfig> {
    let config: Array<_, ProxyConfig> = bpf_pins::map(pins, "config").ok()?.try_into().ok()?;
    config.get(&0, 0).ok()
}

/// Counters of the programs.
pub struct Counters(PerCpuArray<MapData, u64>);

impl Counters {
    /// Opens the counters.
    ///
    /// # Errors
    /// When nothing is attached, or this user may not open the map.
    pub fn open(pins: &Path) -> Result<Self, KernelError> {
        let map = bpf_pins::map(pins, "counters")?.try_into();
        map.map(Self).map_err(|error| KernelError::refused("map counters", &error))
    }

    /// Values since the first attachment.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn read(&self) -> Result<Vec<(Counter, u64)>, KernelError> {
        let read = |(at, counter)| {
            let values = self.0.get(&at, 0).map_err(|error| KernelError::refused("map counters", &error))?;
            Ok((counter, values.iter().sum()))
        };
        (0..).zip(Counter::ALL).map(read).collect()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}
