//! How the programs are attached to a cgroup, and detached.

use std::{
    fs::{self, File},
    mem,
    net::Ipv4Addr,
    os::unix::fs::chown,
    path::Path,
};

use aya::{
    Ebpf,
    maps::{HashMap, SockHash},
    programs::{
        CgroupAttachMode,
        links::{FdLink, LinkError},
    },
};

use crate::{
    KernelError,
    cgroup::{self, Cgroup, contains, normal},
    layout::{AttachmentValue, SELECTED, SelectionValue, network_order},
    object::{self, ADDRESS_PROGRAMS, SEND, TRACK},
    pins,
    status::{attachments, proxy_process},
};

/// What the names of pinned links begin with; the id of the cgroup follows.
pub(crate) const LINK: &str = "link-";

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

/// Attaches the programs to a cgroup, which is created if it is missing; programs attached to it before are replaced. The maps belong
/// to the user `owner`, as whom the proxy runs without capabilities; `None` leaves them to whom they belong.
///
/// # Errors
/// When the cgroup is the root or the proxy's, or the kernel refuses. Nothing is attached to it then.
pub fn attach(pins: &Path, path: &str, selection: &Selection, owner: Option<u32>) -> Result<(), KernelError> {
    let wrong = |problem| KernelError::Cgroup { path: path.to_owned(), problem };
    let value = selection.value().ok_or_else(|| wrong("can have 8 networks and 8 ports"))?;
    if proxy_process(pins).is_some_and(|process| contains(path, process)) {
        return Err(wrong("contains the proxy, whose own connections would be redirected to it"));
    }
    let cgroup = Cgroup::at(path)?;
    let entry =
        AttachmentValue::new(&normal(path), cgroup.was_created).ok_or_else(|| wrong("is too long"))?;
    pins::create(pins)?;
    let attached = attach_all(pins, &cgroup, &value)
        .and_then(|mut programs| record(&mut programs, &cgroup, entry))
        .and_then(|()| owner.map_or(Ok(()), |owner| give_maps(pins, owner)));
    if attached.is_err() {
        // The first error is the one to report.
        let _ = detach_one(pins, cgroup.id).and_then(|()| remove_unused(pins));
        if cgroup.was_created {
            let _ = cgroup::remove_empty(&normal(path));
        }
    }
    attached
}

fn attach_all(pins: &Path, cgroup: &Cgroup, selection: &SelectionValue) -> Result<Ebpf, KernelError> {
    let mut programs = object::open(pins, selection)?;
    for name in ADDRESS_PROGRAMS.iter().chain(&[TRACK, SEND]) {
        object::load(&mut programs, name)?;
    }
    detach_one(pins, cgroup.id)?;
    let folder = File::open(&cgroup.folder).map_err(KernelError::file(&cgroup.folder))?;
    attach_send(&mut programs)?;
    let refused = |error| KernelError::refused("a link", &error);
    let track = object::sock_ops(&mut programs)?;
    let link = track.attach(&folder, LINK_MODE).map_err(refused)?;
    let link = track.take_link(link).map_err(refused)?;
    pin(pins, cgroup, TRACK, link.try_into())?;
    for name in ADDRESS_PROGRAMS {
        let program = object::sock_addr(&mut programs, name)?;
        let link = program.attach(&folder, LINK_MODE).map_err(refused)?;
        let link = program.take_link(link).map_err(refused)?;
        pin(pins, cgroup, name, link.try_into())?;
    }
    Ok(programs)
}

/// Attaches the program on sends to the map of callers' sockets, for as long as there is the map.
fn attach_send(programs: &mut Ebpf) -> Result<(), KernelError> {
    let map = programs.map("caller_sockets").ok_or(KernelError::NoPrograms)?;
    let sockets: SockHash<_, u64> = map.try_into().map_err(|error| KernelError::refused(SEND, &error))?;
    let sockets = sockets.fd().try_clone().map_err(|error| KernelError::refused(SEND, &error))?;
    let program = object::sk_msg(programs)?;
    let refused = |error| KernelError::refused(SEND, &error);
    let link = program.attach(&sockets).map_err(refused)?;
    // Dropped, it would detach the program again.
    mem::forget(program.take_link(link).map_err(refused)?);
    Ok(())
}

fn pin(pins: &Path, cgroup: &Cgroup, name: &str, link: Result<FdLink, LinkError>) -> Result<(), KernelError> {
    let link = link.map_err(|error| KernelError::refused(name, &error))?;
    let path = pins.join(format!("{LINK}{}-{name}", cgroup.id));
    link.pin(path).map(drop).map_err(|error| KernelError::refused(name, &error))
}

/// Leaves the links to root: who has them may detach.
fn give_maps(pins: &Path, owner: u32) -> Result<(), KernelError> {
    let maps = pins::list(pins).into_iter().filter(|pin| !is_link(pin, LINK));
    maps.into_iter().try_for_each(|pin| chown(&pin, Some(owner), None).map_err(KernelError::file(pin)))
}

/// Keeps what `status` shows. An earlier attachment knows best whether the cgroup was created.
fn record(programs: &mut Ebpf, cgroup: &Cgroup, mut entry: AttachmentValue) -> Result<(), KernelError> {
    let refused = |error| KernelError::refused("map attachments", &error);
    let map = programs.map_mut("attachments").ok_or(KernelError::NoPrograms)?;
    let mut entries: HashMap<_, u64, AttachmentValue> = map.try_into().map_err(refused)?;
    if let Ok(earlier) = entries.get(&cgroup.id, 0) {
        entry.was_created = earlier.was_created;
    }
    entries.insert(cgroup.id, entry, 0).map_err(refused)
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

/// Removes the links of a cgroup.
fn detach_one(pins: &Path, id: u64) -> Result<(), KernelError> {
    let prefix = format!("{LINK}{id}-");
    pins::remove(pins::list(pins).into_iter().filter(|pin| is_link(pin, &prefix)))
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

fn is_link(pin: &Path, prefix: &str) -> bool {
    pin.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
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
