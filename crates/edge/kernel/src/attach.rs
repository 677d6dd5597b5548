//! Attaches the programs to cgroups, and detaches them.

use std::{
    fs::{self, File},
    mem,
    net::IpAddr,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, Pod,
    maps::{HashMap, SockHash},
    programs::CgroupAttachMode,
};

use crate::{
    KernelError,
    bpf_object::{self, ACCEPTED, ADDRESS_PROGRAMS, CallerProgram, RESPOND, SEND, TRACK},
    bpf_pins::{self, LINK, Release, is_link},
    cgroup::{self, Cgroup, contains, normal},
    cgroup_in_flight::{self, Groups},
    command_lock::CommandLock,
    ended_cgroups,
    map_layout::{AttachmentValue, CALLERS, KEPT, LocalConnection, SELECTED, SERVERS, SelectionValue},
    pinned_links,
    status::{attachments, proxy_process, takes_short_cut},
    tcp_only_programs,
};

/// The port whose connections are redirected if none is given.
const DEFAULT_PORT: u16 = 80;

/// Mode of links. The kernel refuses any other mode, since links always allow other programs.
const LINK_MODE: CgroupAttachMode = CgroupAttachMode::Single;

/// Selects which connects of a cgroup are redirected.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Networks: an address and a prefix length. If empty, the networks of an earlier attachment stay, or else every address is
    /// redirected.
    pub networks: Vec<(IpAddr, u8)>,
    /// Ports. If empty, the ports of an earlier attachment stay, or else port 80 is redirected.
    pub ports: Vec<u16>,
}

impl Selection {
    /// Converts the selection to the map value. `before` is the value of an earlier attachment.
    fn value(&self, before: Option<SelectionValue>) -> Result<SelectionValue, KernelError> {
        if self.networks.len() > SELECTED || self.ports.len() > SELECTED {
            return Err(KernelError::TooManySelected { max: SELECTED });
        }
        let mut value = before.unwrap_or_else(|| SelectionValue::of_port(DEFAULT_PORT));
        if !self.networks.is_empty() {
            // Cannot truncate: the length is at most eight.
            value.networks = self.networks.len() as u32;
        }
        for (at, network) in self.networks.iter().enumerate() {
            value.set_network(at, *network);
        }
        if !self.ports.is_empty() {
            value.ports = self.ports.len() as u32;
        }
        for (at, port) in self.ports.iter().enumerate() {
            value.port[at] = (*port).into();
        }
        Ok(value)
    }
}

/// Cgroups to attach programs to. An option that is `None` keeps an earlier attachment's value.
#[derive(Clone, Debug, Default)]
pub struct Attachments {
    /// The cgroup of the callers.
    pub callers: String,
    /// Whether the callers are a container: [`end_attachment`](crate::end_attachment) then detaches their cgroup once they have
    /// ended, unless another attachment keeps it.
    pub is_container: bool,
    /// The callers' connects to redirect.
    pub selection: Selection,
    /// Whether the callers may reach only services; their connections then fail while no proxy listens. By default
    /// they may reach everything.
    pub only_services: Option<bool>,
    /// Limit of the callers' requests in flight in the kernel; 0, the default, sets no limit.
    pub max_in_flight: Option<u32>,
    /// Cgroups of servers. The kernel moves requests directly to their sockets, and moves the responses back.
    pub servers: Vec<String>,
    /// Whether the proxy's responses to callers and requests to servers take the short cut, in all attached
    /// cgroups. The default is true.
    pub short_cut: Option<bool>,
    /// The user of a proxy without capabilities; this user owns the maps.
    pub owner: Option<u32>,
    /// The process of this machine's agent. A cgroup that contains the agent is refused, like the proxy's.
    pub agent: Option<u32>,
}

/// Attaches the programs to cgroups and creates missing cgroups. New programs atomically replace earlier ones. Waits for other
/// commands that attach or detach. Returns the id of the callers' cgroup.
///
/// # Errors
/// When a cgroup is the root, the proxy's or the agent's, or the kernel refuses. The earlier attachment of that cgroup
/// remains.
pub fn attach(pins: &Path, to: &Attachments) -> Result<u64, KernelError> {
    let cgroups = || to.servers.iter().chain([&to.callers]);
    cgroups().try_for_each(|cgroup| cgroup::parts(cgroup).map(drop))?;
    to.selection.value(None)?;
    let _lock = CommandLock::take()?;
    match bpf_pins::release(pins)? {
        Release::Nothing if pins.exists() => remove_unused(pins)?,
        Release::Own => ended_cgroups::detach_ended(pins)?,
        Release::Nothing => {}
        Release::Other => return Err(KernelError::OtherRelease(pins.to_owned())),
    }
    for cgroup in cgroups() {
        keep_out_proxy(pins, cgroup)?;
        keep_out(
            cgroup,
            to.agent,
            "contains the agent, whose own connections would be redirected to the proxy",
        )?;
    }
    let before = attachments(pins).unwrap_or_default();
    let groups = groups(pins).ok();
    let in_use = |at| groups.as_ref().is_some_and(|groups| !groups.is_idle(at));
    let short_cut = decide_short_cut(pins, &before, to.short_cut)?;
    let (id, own) = attach_one(pins, &to.callers, CALLERS, |cgroup, entry| {
        let is_first = entry.roles & CALLERS == 0;
        entry.group = cgroup_in_flight::position(&before, cgroup.id, in_use)
            .ok_or_else(|| wrong(&to.callers, "is one too many: 64 can be attached to"))?;
        entry.selection = to.selection.value((!is_first).then_some(entry.selection))?;
        if let Some(only_services) = to.only_services {
            entry.selection.only_services = only_services.into();
        }
        entry.short_cut = short_cut.into();
        let programs = attach_callers(pins, cgroup, entry, to.owner)?;
        entry.roles |= if to.is_container { 0 } else { KEPT };
        // Another cgroup may have used the position before.
        if is_first { limit(pins, entry, to.max_in_flight.unwrap_or(0)) } else { Ok(()) }?;
        Ok(programs)
    })?;
    to.max_in_flight.map_or(Ok(()), |most| limit(pins, &own, most))?;
    for servers in &to.servers {
        attach_one(pins, servers, SERVERS, |cgroup, entry| {
            entry.roles |= KEPT;
            attach_servers(pins, cgroup, to.owner)
        })?;
    }
    Ok(id)
}

/// Whether responses take the short cut: as requested, otherwise as in the earlier attachment. It cannot be switched
/// off later, since programs stay on a socket map as long as the map exists.
fn decide_short_cut(
    pins: &Path,
    before: &[(u64, AttachmentValue)],
    asked: Option<bool>,
) -> Result<bool, KernelError> {
    let is_first = before.iter().all(|(_, entry)| entry.roles & CALLERS == 0);
    let is_used = takes_short_cut(before);
    match asked {
        Some(false) if is_used => Err(KernelError::ShortCutInUse(pins.to_owned())),
        Some(asked) => Ok(asked),
        None => Ok(is_used || is_first),
    }
}

fn groups(pins: &Path) -> Result<Groups, KernelError> {
    Groups::open(&bpf_pins::map(pins, "groups")?)
}

fn limit(pins: &Path, entry: &AttachmentValue, most: u32) -> Result<(), KernelError> {
    groups(pins).map(|groups| groups.limit(entry.group, most))
}

fn wrong(path: &str, problem: &'static str) -> KernelError {
    KernelError::Cgroup { path: path.to_owned(), problem }
}

/// Refuses to attach to the proxy's cgroup.
fn keep_out_proxy(pins: &Path, path: &str) -> Result<(), KernelError> {
    let problem = "contains the proxy, whose own connections would be redirected to it";
    keep_out(path, proxy_process(pins), problem)
}

/// Refuses to attach to a cgroup that contains `process`.
fn keep_out(path: &str, process: Option<u32>, problem: &'static str) -> Result<(), KernelError> {
    match process.is_some_and(|process| contains(path, process)) {
        true => Err(wrong(path, problem)),
        false => Ok(()),
    }
}

/// Attaches programs to a cgroup in a role. `attach` receives the earlier entry and updates it. Returns the cgroup's id and entry.
fn attach_one(
    pins: &Path,
    path: &str,
    role: u32,
    attach: impl FnOnce(&Cgroup, &mut AttachmentValue) -> Result<Ebpf, KernelError>,
) -> Result<(u64, AttachmentValue), KernelError> {
    let cgroup = Cgroup::at(path)?;
    let before = attachments(pins).unwrap_or_default();
    let before = before.into_iter().find(|(id, _)| *id == cgroup.id).map(|(_, entry)| entry);
    let links = links_of(role);
    let attached = (|| {
        let entry = before.or_else(|| AttachmentValue::new(&normal(path), cgroup.was_created, 0));
        let mut entry = entry.ok_or_else(|| wrong(path, "is too long"))?;
        bpf_pins::create(pins)?;
        pinned_links::remove_new(pins, cgroup.id, links)?;
        let mut programs = attach(&cgroup, &mut entry)?;
        entry.roles |= role;
        record(&mut programs, cgroup.id, entry)?;
        // A proxy that starts now checks the record after it listens, so at least one of the two sees the
        // other.
        keep_out_proxy(pins, path)?;
        pinned_links::replace(pins, cgroup.id, links).map(|()| (cgroup.id, entry))
    })();
    if attached.is_err() {
        // The first error is reported; this one is dropped.
        let _ = pinned_links::remove_new(pins, cgroup.id, links);
        let _ = restore(pins, cgroup.id, before);
        let _ = remove_unused(pins);
        let _ = cgroup::remove_empty(&normal(path), cgroup.was_created);
    }
    attached
}

/// The programs whose links belong to a role.
fn links_of(role: u32) -> &'static [&'static str] {
    match role {
        SERVERS => &[ACCEPTED],
        _ => &["getpeername4", "getpeername6", "connect4", "connect6", TRACK],
    }
}

/// Opens the maps, and gives them to the owner at once, because a proxy without capabilities may already be
/// waiting for them.
fn open(pins: &Path, own: &CallerProgram, owner: Option<u32>) -> Result<Ebpf, KernelError> {
    let programs = bpf_object::open(pins, own)?;
    owner.map_or(Ok(()), |owner| give_maps(pins, owner))?;
    Ok(programs)
}

fn attach_callers(
    pins: &Path,
    cgroup: &Cgroup,
    entry: &AttachmentValue,
    owner: Option<u32>,
) -> Result<Ebpf, KernelError> {
    let own = CallerProgram { selection: entry.selection, group: entry.group };
    let mut programs = open(pins, &own, owner)?;
    for name in ADDRESS_PROGRAMS.iter().chain(&[
        TRACK,
        SEND,
        bpf_object::SHORT_CUT,
        bpf_object::FORWARD,
        bpf_object::LOOK,
    ]) {
        bpf_object::load(&mut programs, name)?;
    }
    attach_to_sockets::<u64>(&mut programs, SEND, "caller_sockets")?;
    attach_to_sockets::<u64>(&mut programs, bpf_object::LOOK, "asking_sockets")?;
    attach_sock_ops(pins, &mut programs, TRACK, cgroup)?;
    let folder = File::open(&cgroup.folder).map_err(KernelError::file(&cgroup.folder))?;
    for name in ADDRESS_PROGRAMS {
        let refused = |error| KernelError::refused("a link", &error);
        let program = bpf_object::sock_addr(&mut programs, name)?;
        let link = program.attach(&folder, LINK_MODE).map_err(refused)?;
        let link = program.take_link(link).map_err(refused)?;
        pinned_links::pin(pins, cgroup, name, link.try_into())?;
    }
    if entry.short_cut != 0 {
        attach_to_sockets::<u64>(&mut programs, bpf_object::SHORT_CUT, "proxy_sockets")?;
        attach_to_sockets::<LocalConnection>(&mut programs, bpf_object::FORWARD, "forwarding_sockets")?;
    }
    Ok(programs)
}

fn attach_servers(pins: &Path, cgroup: &Cgroup, owner: Option<u32>) -> Result<Ebpf, KernelError> {
    let mut programs = open(pins, &CallerProgram::default(), owner)?;
    bpf_object::load(&mut programs, ACCEPTED)?;
    bpf_object::load(&mut programs, RESPOND)?;
    attach_to_sockets::<LocalConnection>(&mut programs, RESPOND, "server_sockets")?;
    tcp_only_programs::leave_listeners(&mut programs, cgroup)?;
    attach_sock_ops(pins, &mut programs, ACCEPTED, cgroup)?;
    Ok(programs)
}

/// Attaches a send program to a socket map. The attachment lasts as long as the map.
fn attach_to_sockets<K: Pod>(programs: &mut Ebpf, name: &str, map: &str) -> Result<(), KernelError> {
    let map = programs.map(map).ok_or(KernelError::NoPrograms)?;
    let sockets: SockHash<_, K> = map.try_into().map_err(|error| KernelError::refused(name, &error))?;
    let sockets = sockets.fd().try_clone().map_err(|error| KernelError::refused(name, &error))?;
    let program = bpf_object::sk_msg(programs, name)?;
    let refused = |error| KernelError::refused(name, &error);
    let link = program.attach(&sockets).map_err(refused)?;
    // Dropping the link would detach the program.
    mem::forget(program.take_link(link).map_err(refused)?);
    Ok(())
}

fn attach_sock_ops(pins: &Path, programs: &mut Ebpf, name: &str, cgroup: &Cgroup) -> Result<(), KernelError> {
    let folder = File::open(&cgroup.folder).map_err(KernelError::file(&cgroup.folder))?;
    let refused = |error| KernelError::refused("a link", &error);
    let program = bpf_object::sock_ops(programs, name)?;
    let link = program.attach(&folder, LINK_MODE).map_err(refused)?;
    let link = program.take_link(link).map_err(refused)?;
    pinned_links::pin(pins, cgroup, name, link.try_into())
}

/// Gives the maps to `owner`, but not the links, since the owner of a link may detach it. Root also keeps the maps
/// with addresses of kernel memory, which only the programs read.
fn give_maps(pins: &Path, owner: u32) -> Result<(), KernelError> {
    let kept = [LINK, "caller_addresses", "exchange_addresses"];
    let is_given = |pin: &PathBuf| kept.iter().all(|prefix| !is_link(pin, prefix));
    let maps = bpf_pins::list(pins).into_iter().filter(is_given);
    maps.into_iter().try_for_each(|pin| chown(&pin, Some(owner), None).map_err(KernelError::file(pin)))
}

/// Records an attachment, for `status` and later attachments.
fn record(programs: &mut Ebpf, id: u64, entry: AttachmentValue) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let map = programs.map_mut("attachments").ok_or(KernelError::NoPrograms)?;
    let mut entries: HashMap<_, u64, AttachmentValue> = map.try_into().map_err(refused)?;
    entries.insert(id, entry, 0).map_err(refused)
}

/// Restores the earlier record of a cgroup.
pub(crate) fn restore(pins: &Path, id: u64, before: Option<AttachmentValue>) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let mut entries: HashMap<_, u64, AttachmentValue> =
        bpf_pins::map(pins, "attachments")?.try_into().map_err(refused)?;
    match before {
        Some(before) => entries.insert(id, before, 0).map_err(refused),
        None => entries.remove(&id).map_err(refused),
    }
}

/// Result of a detach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// Paths of the detached cgroups.
    pub cgroups: Vec<String>,
    /// Cgroups that still exist, because processes run in them or `attach` did not create them.
    pub left: Vec<String>,
}

/// Detaches everything, and removes the maps and the empty cgroups that `attach` created.
///
/// # Errors
/// When nothing is attached, or the system refuses.
pub fn detach(pins: &Path) -> Result<Detached, KernelError> {
    let exist = || pins.exists().then_some(()).ok_or_else(|| KernelError::NotAttached(pins.to_owned()));
    exist()?;
    let _lock = CommandLock::take()?;
    // Another command may have detached meanwhile.
    exist()?;
    let entries = attachments(pins).unwrap_or_default();
    // Links are removed first: without maps they could not redirect correctly.
    let (links, maps): (Vec<_>, Vec<_>) =
        bpf_pins::list(pins).into_iter().partition(|pin| is_link(pin, LINK));
    bpf_pins::remove(links)?;
    bpf_pins::remove(maps)?;
    fs::remove_dir(pins).map_err(KernelError::file(pins))?;
    let mut cgroups: Vec<_> =
        entries.iter().map(|(_, entry)| (entry.path().to_owned(), entry.was_created)).collect();
    cgroups.sort();
    let mut left = Vec::new();
    // Inner cgroups are removed before outer ones.
    for (path, was_created) in cgroups.iter().rev() {
        if cgroup::remove_empty(path, *was_created)? {
            left.insert(0, path.clone());
        }
    }
    Ok(Detached { cgroups: cgroups.into_iter().map(|(path, _)| path).collect(), left })
}

/// Removes the maps if nothing is attached.
fn remove_unused(pins: &Path) -> Result<(), KernelError> {
    let all = bpf_pins::list(pins);
    if all.iter().any(|pin| is_link(pin, LINK)) {
        return Ok(());
    }
    bpf_pins::remove(all)?;
    fs::remove_dir(pins).map_err(KernelError::file(pins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> (IpAddr, u8) {
        let (address, prefix) = text.split_once('/').unwrap();
        (address.parse().unwrap(), prefix.parse().unwrap())
    }

    #[test]
    fn kernel_map_stores_selected_networks_as_ipv6_in_network_byte_order() {
        let networks =
            ["127.96.3.4/16", "10.1.2.3/0", "fd00:1234:5678::9/40", "::1/128", "::/0"].map(network);
        let value = Selection { networks: networks.to_vec(), ports: vec![81] }.value(None).unwrap();
        let bytes = |words: [u32; 4]| words.map(u32::to_ne_bytes).concat();
        assert_eq!(bytes(value.address[0]), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 96, 0, 0]);
        assert_eq!(bytes(value.mask[0]), [[255; 14].as_slice(), &[0; 2]].concat());
        assert_eq!(bytes(value.mask[1]), [[255; 12].as_slice(), &[0; 4]].concat());
        assert_eq!(bytes(value.address[2])[..6], [0xfd, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!((value.address[4], value.mask[4]), ([0; 4], [0; 4]));
        assert_eq!((value.networks, value.ports, value.port[0]), (5, 1, 81));
        let shown = ["127.96.0.0/16", "0.0.0.0/0", "fd00:1234:5600::/40", "::1/128", "::/0"].map(network);
        assert_eq!((value.networks(), value.ports()), (shown.to_vec(), vec![81]));
    }

    #[test]
    fn repeated_attach_keeps_values_of_omitted_options() {
        let networks = || vec![network("127.96.0.0/16")];
        let first = Selection { networks: networks(), ports: Vec::new() }.value(None).unwrap();
        assert_eq!((first.networks(), first.ports()), (networks(), vec![80]));
        let second = Selection { networks: Vec::new(), ports: vec![81, 82] }.value(Some(first)).unwrap();
        assert_eq!((second.networks(), second.ports()), (networks(), vec![81, 82]));
        let third = Selection { networks: vec![network("0.0.0.0/0")], ports: Vec::new() };
        let third = third.value(Some(second)).unwrap();
        assert_eq!((third.networks(), third.ports()), (vec![network("0.0.0.0/0")], vec![81, 82]));
        assert!(Selection { networks: Vec::new(), ports: vec![1; 9] }.value(None).is_err());
    }
}
