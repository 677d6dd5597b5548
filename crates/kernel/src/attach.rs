//! How the programs are attached to a cgroup, and detached.

use std::{
    fs::{self, File},
    mem,
    net::Ipv4Addr,
    num::NonZeroU32,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, Pod,
    maps::{HashMap, SockHash},
    programs::{
        CgroupAttachMode,
        links::{FdLink, LinkError},
    },
};

use crate::{
    KernelError,
    cgroup::{self, Cgroup, contains, normal},
    groups::{self, Groups},
    layout::{AttachmentValue, CALLERS, LocalConnection, SELECTED, SERVERS, SelectionValue, network_order},
    object::{self, ACCEPTED, ADDRESS_PROGRAMS, CallerProgram, RESPOND, SEND, TRACK},
    pins::{self, LINK, Release, is_link},
    status::{attachments, proxy_process},
};

/// Links always allow other programs beside theirs; the kernel refuses a mode that says so.
const LINK_MODE: CgroupAttachMode = CgroupAttachMode::Single;

/// Which connects of a cgroup are redirected.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Networks: an address and the length of its prefix, up to 32; every address without any.
    pub networks: Vec<(Ipv4Addr, u8)>,
    /// Ports; every port without any.
    pub ports: Vec<u16>,
}

impl Selection {
    /// `None` if there are too many.
    fn value(&self) -> Option<SelectionValue> {
        if self.networks.len() > SELECTED || self.ports.len() > SELECTED {
            return None;
        }
        let mut value = SelectionValue {
            // Eight at most.
            networks: self.networks.len() as u32,
            ports: self.ports.len() as u32,
            ..SelectionValue::default()
        };
        for (at, (address, prefix)) in self.networks.iter().enumerate() {
            let mask = u32::MAX.checked_shl(32 - u32::from((*prefix).min(32))).unwrap_or(0).to_be();
            value.mask[at] = mask;
            value.address[at] = network_order(*address) & mask;
        }
        for (at, port) in self.ports.iter().enumerate() {
            value.port[at] = (*port).into();
        }
        Some(value)
    }
}

/// To which programs of this machine the programs are attached.
#[derive(Clone, Debug)]
pub struct Attachments {
    /// The cgroup of the callers.
    pub callers: String,
    /// Which of their connects are redirected.
    pub selection: Selection,
    /// Whether these may reach services alone, and fail while no proxy listens.
    pub only_services: bool,
    /// How many of their requests the kernel may have in flight; `None` without a limit.
    pub max_in_flight: Option<NonZeroU32>,
    /// Cgroups of servers, to which the kernel moves requests directly, and back the responses.
    pub servers: Vec<String>,
    /// Whether responses of the proxy take the short cut to the callers, and its requests that to the servers.
    pub short_cut: bool,
    /// The user as whom the proxy runs without capabilities, and to whom the maps belong; `None` leaves them to whom they belong.
    pub owner: Option<u32>,
    /// The process of the agent of this machine: a cgroup that contains it is refused, as that of the proxy is.
    pub agent: Option<u32>,
}

/// Attaches the programs to cgroups, which are created if they are missing; programs attached to them before are replaced.
///
/// # Errors
/// When a cgroup is the root, the proxy's or the agent's, or the kernel refuses. Nothing is attached to that cgroup then.
pub fn attach(pins: &Path, to: &Attachments) -> Result<(), KernelError> {
    let callers = &to.callers;
    let mut selection =
        to.selection.value().ok_or_else(|| wrong(callers, "can have 8 networks and 8 ports"))?;
    selection.only_services = to.only_services.into();
    match pins::release(pins) {
        Release::Nothing if pins.exists() => remove_unused(pins)?,
        Release::Own | Release::Nothing => {}
        Release::Other => return Err(KernelError::OtherRelease(pins.to_owned())),
    }
    for cgroup in to.servers.iter().chain([callers]) {
        keep_out_proxy(pins, cgroup)?;
        keep_out(
            cgroup,
            to.agent,
            "contains the agent, whose own connections would be redirected to the proxy",
        )?;
    }
    attach_one(pins, callers, CALLERS, |cgroup, entry| {
        entry.only_services = selection.only_services;
        entry.group = groups::position(&attachments(pins).unwrap_or_default(), cgroup.id)
            .ok_or_else(|| wrong(callers, "is one too many: 64 can be attached to"))?;
        let own = CallerProgram { selection, group: entry.group };
        let programs = attach_callers(pins, cgroup, &own, to.short_cut)?;
        let map = programs.map("groups").ok_or(KernelError::NoPrograms)?;
        Groups::open(map)?.limit(entry.group, to.max_in_flight.map_or(0, NonZeroU32::get));
        Ok(programs)
    })?;
    for servers in &to.servers {
        attach_one(pins, servers, SERVERS, |cgroup, _| attach_servers(pins, cgroup))?;
    }
    to.owner.map_or(Ok(()), |owner| give_maps(pins, owner))
}

fn wrong(path: &str, problem: &'static str) -> KernelError {
    KernelError::Cgroup { path: path.to_owned(), problem }
}

/// Refuses the cgroup of the proxy.
fn keep_out_proxy(pins: &Path, path: &str) -> Result<(), KernelError> {
    let problem = "contains the proxy, whose own connections would be redirected to it";
    keep_out(path, proxy_process(pins), problem)
}

/// Refuses a cgroup that this process is in.
fn keep_out(path: &str, process: Option<u32>, problem: &'static str) -> Result<(), KernelError> {
    match process.is_some_and(|process| contains(path, process)) {
        true => Err(wrong(path, problem)),
        false => Ok(()),
    }
}

fn attach_one(
    pins: &Path,
    path: &str,
    role: u32,
    attach: impl FnOnce(&Cgroup, &mut AttachmentValue) -> Result<Ebpf, KernelError>,
) -> Result<(), KernelError> {
    let cgroup = Cgroup::at(path)?;
    let mut entry = AttachmentValue::new(&normal(path), cgroup.was_created, role)
        .ok_or_else(|| wrong(path, "is too long"))?;
    pins::create(pins)?;
    let attached = attach(&cgroup, &mut entry)
        .and_then(|mut programs| record(&mut programs, &cgroup, entry))
        // A proxy may have begun to listen meanwhile: it looks for what is recorded once it listens, and one of both sees the other.
        .and_then(|()| keep_out_proxy(pins, path));
    if attached.is_err() {
        // The first error is the one to report.
        let _ = detach_one(pins, cgroup.id, links_of(role));
        let _ = forget(pins, cgroup.id, role);
        let _ = remove_unused(pins);
        if cgroup.was_created {
            let _ = cgroup::remove_empty(&normal(path));
        }
    }
    attached
}

/// The programs whose links a role has.
fn links_of(role: u32) -> &'static [&'static str] {
    match role {
        SERVERS => &[ACCEPTED],
        _ => &["getpeername4", "getpeername6", "connect4", "connect6", TRACK],
    }
}

fn attach_callers(
    pins: &Path,
    cgroup: &Cgroup,
    own: &CallerProgram,
    short_cut: bool,
) -> Result<Ebpf, KernelError> {
    let mut programs = object::open(pins, own)?;
    for name in ADDRESS_PROGRAMS.iter().chain(&[TRACK, SEND, object::SHORT_CUT, object::FORWARD]) {
        object::load(&mut programs, name)?;
    }
    detach_one(pins, cgroup.id, links_of(CALLERS))?;
    if short_cut {
        attach_to_sockets::<u64>(&mut programs, object::SHORT_CUT, "proxy_sockets")?;
        attach_to_sockets::<LocalConnection>(&mut programs, object::FORWARD, "forwarding_sockets")?;
    }
    attach_to_sockets::<u64>(&mut programs, SEND, "caller_sockets")?;
    attach_sock_ops(pins, &mut programs, TRACK, cgroup)?;
    let folder = File::open(&cgroup.folder).map_err(KernelError::file(&cgroup.folder))?;
    for name in ADDRESS_PROGRAMS {
        let refused = |error| KernelError::refused("a link", &error);
        let program = object::sock_addr(&mut programs, name)?;
        let link = program.attach(&folder, LINK_MODE).map_err(refused)?;
        let link = program.take_link(link).map_err(refused)?;
        pin(pins, cgroup, name, link.try_into())?;
    }
    Ok(programs)
}

fn attach_servers(pins: &Path, cgroup: &Cgroup) -> Result<Ebpf, KernelError> {
    let mut programs = object::open(pins, &CallerProgram::default())?;
    object::load(&mut programs, ACCEPTED)?;
    object::load(&mut programs, RESPOND)?;
    detach_one(pins, cgroup.id, links_of(SERVERS))?;
    attach_to_sockets::<LocalConnection>(&mut programs, RESPOND, "server_sockets")?;
    attach_sock_ops(pins, &mut programs, ACCEPTED, cgroup)?;
    Ok(programs)
}

/// Attaches a program on sends to a map of sockets, for as long as there is the map.
fn attach_to_sockets<K: Pod>(programs: &mut Ebpf, name: &str, map: &str) -> Result<(), KernelError> {
    let map = programs.map(map).ok_or(KernelError::NoPrograms)?;
    let sockets: SockHash<_, K> = map.try_into().map_err(|error| KernelError::refused(name, &error))?;
    let sockets = sockets.fd().try_clone().map_err(|error| KernelError::refused(name, &error))?;
    let program = object::sk_msg(programs, name)?;
    let refused = |error| KernelError::refused(name, &error);
    let link = program.attach(&sockets).map_err(refused)?;
    // Dropped, it would detach the program again.
    mem::forget(program.take_link(link).map_err(refused)?);
    Ok(())
}

fn attach_sock_ops(pins: &Path, programs: &mut Ebpf, name: &str, cgroup: &Cgroup) -> Result<(), KernelError> {
    let folder = File::open(&cgroup.folder).map_err(KernelError::file(&cgroup.folder))?;
    let refused = |error| KernelError::refused("a link", &error);
    let program = object::sock_ops(programs, name)?;
    let link = program.attach(&folder, LINK_MODE).map_err(refused)?;
    let link = program.take_link(link).map_err(refused)?;
    pin(pins, cgroup, name, link.try_into())
}

fn pin(pins: &Path, cgroup: &Cgroup, name: &str, link: Result<FdLink, LinkError>) -> Result<(), KernelError> {
    let link = link.map_err(|error| KernelError::refused(name, &error))?;
    let path = pins.join(format!("{LINK}{}-{name}", cgroup.id));
    link.pin(path).map(drop).map_err(|error| KernelError::refused(name, &error))
}

/// Leaves the links to root: who has them may detach. And the addresses in the kernel's memory, where the programs read.
fn give_maps(pins: &Path, owner: u32) -> Result<(), KernelError> {
    let kept = [LINK, "caller_addresses", "exchange_addresses"];
    let is_given = |pin: &PathBuf| kept.iter().all(|prefix| !is_link(pin, prefix));
    let maps = pins::list(pins).into_iter().filter(is_given);
    maps.into_iter().try_for_each(|pin| chown(&pin, Some(owner), None).map_err(KernelError::file(pin)))
}

/// Keeps what `status` shows. An earlier attachment knows best whether the cgroup was created.
fn record(programs: &mut Ebpf, cgroup: &Cgroup, mut entry: AttachmentValue) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let map = programs.map_mut("attachments").ok_or(KernelError::NoPrograms)?;
    let mut entries: HashMap<_, u64, AttachmentValue> = map.try_into().map_err(refused)?;
    if let Ok(earlier) = entries.get(&cgroup.id, 0) {
        entry.was_created = earlier.was_created;
        if entry.roles & CALLERS == 0 {
            (entry.group, entry.only_services) = (earlier.group, earlier.only_services);
        }
        entry.roles |= earlier.roles;
    }
    entries.insert(cgroup.id, entry, 0).map_err(refused)
}

/// Removes what was recorded of a role of a cgroup.
fn forget(pins: &Path, id: u64, role: u32) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let mut entries: HashMap<_, u64, AttachmentValue> =
        pins::map(pins, "attachments")?.try_into().map_err(refused)?;
    let Ok(mut entry) = entries.get(&id, 0) else { return Ok(()) };
    entry.roles &= !role;
    match entry.roles {
        0 => entries.remove(&id).map_err(refused),
        _ => entries.insert(id, entry, 0).map_err(refused),
    }
}

/// Detaches everything, and removes the maps and those cgroups that were created and are empty. Returns the paths of the cgroups.
///
/// # Errors
/// When nothing is attached, or the system refuses.
pub fn detach(pins: &Path) -> Result<Vec<String>, KernelError> {
    if !pins.exists() {
        return Err(KernelError::NotAttached(pins.to_owned()));
    }
    let entries = attachments(pins).unwrap_or_default();
    // Links first: without maps, nothing could be redirected correctly.
    let (links, maps): (Vec<_>, Vec<_>) = pins::list(pins).into_iter().partition(|pin| is_link(pin, LINK));
    pins::remove(links)?;
    pins::remove(maps)?;
    fs::remove_dir(pins).map_err(KernelError::file(pins))?;
    for (_, entry) in entries.iter().filter(|(_, entry)| entry.was_created != 0) {
        cgroup::remove_empty(entry.path())?;
    }
    Ok(entries.iter().map(|(_, entry)| entry.path().to_owned()).collect())
}

/// Removes links of these programs to a cgroup.
fn detach_one(pins: &Path, id: u64, programs: &[&str]) -> Result<(), KernelError> {
    let links = programs.iter().map(|name| pins.join(format!("{LINK}{id}-{name}")));
    pins::remove(links.filter(|pin| pin.exists()))
}

/// Removes the maps if nothing is attached.
fn remove_unused(pins: &Path) -> Result<(), KernelError> {
    let all = pins::list(pins);
    if all.iter().any(|pin| is_link(pin, LINK)) {
        return Ok(());
    }
    pins::remove(all)?;
    fs::remove_dir(pins).map_err(KernelError::file(pins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_in_network_byte_order() {
        let networks = vec![(Ipv4Addr::new(127, 96, 3, 4), 16), (Ipv4Addr::new(10, 1, 2, 3), 0)];
        let value = Selection { networks, ports: vec![80] }.value().unwrap();
        assert_eq!(value.address[0].to_ne_bytes(), [127, 96, 0, 0]);
        assert_eq!(value.mask[0].to_ne_bytes(), [255, 255, 0, 0]);
        assert_eq!((value.address[1], value.mask[1]), (0, 0));
        assert_eq!((value.networks, value.ports, value.port[0]), (2, 1, 80));
    }
}
