//! Links of programs to cgroups, pinned beside the maps.
//!
//! A new link is pinned under a temporary name beside the link that it replaces. Programs therefore stay
//! attached throughout, and the earlier ones remain if something fails.
#![allow(unsafe_code, reason = "two commands of bpf(2) that aya does not offer")]

use std::{
    ffi::CString,
    fs,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use aya::programs::links::{FdLink, LinkError};

use crate::{
    KernelError,
    bpf_pins::{self, LINK},
    cgroup::Cgroup,
};

/// Suffix of new links that are not in force yet.
const NEW: &str = "-new";

/// Commands of bpf(2).
const OBJ_GET: libc::c_int = 7;
const LINK_DETACH: libc::c_int = 34;

/// Attributes of the `BPF_OBJ_GET` command.
#[derive(Default)]
#[repr(C)]
struct ObjGet {
    path: u64,
    descriptor: u32,
    flags: u32,
}

fn path(pins: &Path, id: u64, name: &str) -> PathBuf {
    pins.join(format!("{LINK}{id}-{name}"))
}

fn new_path(pins: &Path, id: u64, name: &str) -> PathBuf {
    // Names in a BPF file system have no dots.
    pins.join(format!("{LINK}{id}-{name}{NEW}"))
}

/// Pins a new link beside the current one of this name.
pub(crate) fn pin(
    pins: &Path,
    cgroup: &Cgroup,
    name: &str,
    link: Result<FdLink, LinkError>,
) -> Result<(), KernelError> {
    let link = link.map_err(|error| KernelError::refused(name, &error))?;
    link.pin(new_path(pins, cgroup.id, name)).map(drop).map_err(|error| KernelError::refused(name, &error))
}

/// Replaces the current links of these programs to a cgroup by the new ones, and detaches the earlier ones.
pub(crate) fn replace(pins: &Path, id: u64, names: &[&str]) -> Result<(), KernelError> {
    names.iter().try_for_each(|name| {
        let to = path(pins, id, name);
        let earlier = open(&to);
        fs::rename(new_path(pins, id, name), &to).map_err(KernelError::file(&to))?;
        earlier.iter().for_each(detach);
        Ok(())
    })
}

/// Detaches new links that are not in force, such as links of a failed attempt.
pub(crate) fn remove_new(pins: &Path, id: u64, names: &[&str]) -> Result<(), KernelError> {
    let links = names.iter().map(|name| new_path(pins, id, name));
    bpf_pins::remove(links.filter(|pin| pin.exists()))
}

/// A pinned link; `None` if there is none.
fn open(path: &Path) -> Option<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let attributes = ObjGet { path: path.as_ptr() as u64, ..ObjGet::default() };
    // SAFETY: the kernel reads the attributes, with their given size, and the zero-terminated path; both outlive the
    // call.
    let opened = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET, &raw const attributes, size_of::<ObjGet>()) };
    let descriptor = RawFd::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the kernel has just opened the descriptor for this process.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Whether the cgroup of a pinned link was removed, and no socket of it is left.
pub(crate) fn leads_nowhere(path: &Path) -> bool {
    let Some(link) = open(path) else { return false };
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd())).unwrap_or_default();
    let cgroup = info.lines().find_map(|line| line.strip_prefix("cgroup_id:"));
    cgroup.is_some_and(|id| id.trim() == "0")
}

/// Detaches a link at once. If only the pin were removed, the kernel would detach the link some time later.
fn detach(link: &OwnedFd) {
    let descriptor: RawFd = link.as_raw_fd();
    // SAFETY: the kernel reads the attribute, with its given size; it outlives the call. If the kernel refuses, the link ends
    // with its last reference.
    unsafe { libc::syscall(libc::SYS_bpf, LINK_DETACH, &raw const descriptor, size_of::<RawFd>()) };
}
