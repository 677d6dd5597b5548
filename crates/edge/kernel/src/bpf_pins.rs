//! Pins of maps and links.

use std::{
    error::Error,
    fs, io, iter,
    path::{Path, PathBuf},
};

use aya::maps::{Array, Map, MapData};
use rustix::{
    fs::statfs,
    mount::{MountFlags, mount},
};

use crate::KernelError;

/// Default directory of pins.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/fairmesh";
const DEFAULT_MOUNT: &str = "/sys/fs/bpf";
/// Magic number of the BPF file system (`BPF_FS_MAGIC`).
const BPF_FILE_SYSTEM: u64 = 0xcafe_4a11;

/// Prefix of the names of pinned links. The cgroup's id follows.
pub(crate) const LINK: &str = "link-";

/// Content of the map `layout` as written by this release.
pub(crate) const LAYOUT: u64 = match u64::from_str_radix(env!("KERNEL_MAPS_LAYOUT"), 16) {
    Ok(layout) => layout,
    // Cannot happen: `build.rs` writes 16 hexadecimal digits.
    Err(_) => panic!(),
};

/// Release that pinned the maps and links, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Own,
    /// Nothing is attached. Maps of a failed attempt may exist.
    Nothing,
    Other,
}

/// Determines which release pinned the maps and links.
///
/// # Errors
/// When this cannot be determined, for instance because this user may not open the maps.
pub(crate) fn release(pins: &Path) -> Result<Release, KernelError> {
    let layout = match map(pins, "layout") {
        Ok(layout) => {
            let layout: Option<Array<_, u64>> = layout.try_into().ok();
            layout.and_then(|layout| layout.get(&0, 0).ok())
        }
        Err(KernelError::NotAttached(_)) => None,
        Err(error) => return Err(error),
    };
    Ok(match layout {
        Some(LAYOUT) => Release::Own,
        // Links are pinned after all maps, so links without a layout are another release's.
        _ if list(pins).iter().any(|pin| is_link(pin, LINK)) => Release::Other,
        _ => Release::Nothing,
    })
}

/// Fails if the maps belong to another release, whose layout may differ.
pub(crate) fn require_own(pins: &Path) -> Result<(), KernelError> {
    match release(pins)? {
        Release::Own => Ok(()),
        Release::Nothing => Err(KernelError::NotAttached(pins.to_owned())),
        Release::Other => Err(KernelError::OtherRelease(pins.to_owned())),
    }
}

/// Whether the pin's name has this prefix.
pub(crate) fn is_link(pin: &Path, prefix: &str) -> bool {
    pin.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Creates the directory. At the default location, mounts a BPF file system if it is missing.
pub(crate) fn create(pins: &Path) -> Result<(), KernelError> {
    let parent = pins.parent().unwrap_or(pins);
    if parent == Path::new(DEFAULT_MOUNT) && !is_bpf(parent) {
        let mounted = mount("bpf", DEFAULT_MOUNT, "bpf", MountFlags::empty(), None);
        mounted.map_err(io::Error::from).map_err(KernelError::file(DEFAULT_MOUNT))?;
    }
    if !is_bpf(parent) {
        return Err(KernelError::NoBpfFileSystem(pins.to_owned()));
    }
    match fs::create_dir(pins) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(KernelError::file(pins)(error)),
        _ => Ok(()),
    }
}

fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|system| system.f_type as u64 == BPF_FILE_SYSTEM)
}

/// Opens a pinned map.
pub(crate) fn map(pins: &Path, name: &str) -> Result<Map, KernelError> {
    let path = pins.join(name);
    if let Err(error) = fs::metadata(&path) {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => KernelError::NotAttached(pins.to_owned()),
            io::ErrorKind::PermissionDenied => KernelError::NoAccess(path),
            _ => KernelError::file(path)(error),
        });
    }
    let data = MapData::from_pin(&path).and_then(Map::from_map_data);
    data.map_err(|error| match kind_of(&error) {
        Some(io::ErrorKind::PermissionDenied) => KernelError::NoAccess(path),
        // 'detach' has removed it in this moment.
        Some(io::ErrorKind::NotFound) => KernelError::NotAttached(pins.to_owned()),
        _ => KernelError::refused(format!("map {name}"), &error),
    })
}

/// The system's reason.
fn kind_of(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let causes = iter::successors(Some(error), |&error| error.source());
    let mut errors = causes.filter_map(|error| error.downcast_ref::<io::Error>());
    errors.next().map(io::Error::kind)
}

/// The pins in a directory; none if it is missing.
pub(crate) fn list(pins: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(pins).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

/// Removes pins. A pinned object is destroyed with its last reference.
pub(crate) fn remove(pins: impl IntoIterator<Item = PathBuf>) -> Result<(), KernelError> {
    pins.into_iter().try_for_each(|pin| fs::remove_file(&pin).map_err(KernelError::file(pin)))
}
