//! Opens and verifies a store file, and explains why a file is refused.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Builder, Database, Error, StorageBackend};

use super::{
    backend::{BoxedBackend, OpenBackend, Overlay, of_file},
    format::{self, FORMAT, Meta},
};
use crate::{StoreError, StoreLocation};

/// Cache size of redb, in bytes. It is small because reads are served from the RIB, not from here.
const CACHE_BYTES: usize = 64 << 20;

/// Creates an empty store file at `path`.
///
/// The file has another name until it is complete. An empty or truncated file at `path` was a store before, and is
/// never taken for a new one.
pub(super) fn create_file(path: &Path) -> Result<(), StoreError> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // Left over from an interrupted creation. This process holds the lock, so no other process uses the file.
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(system_error(&fresh, e)),
        _ => {}
    }
    // The file contains the records of all tenants, which other users of the machine must not read.
    let created = File::options().write(true).create_new(true).mode(0o600).open(&fresh);
    let backend = created.and_then(|_| of_file(&fresh)).map_err(|e| system_error(&fresh, e))?;
    initialize(path, backend)?;
    let durable = || {
        File::open(&fresh)?.sync_all()?;
        fs::rename(&fresh, path)?;
        // If the directory is not synced, a power failure may lose the file's name, and with it acknowledged writes.
        File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
    };
    durable().map_err(|e| system_error(path, e))
}

/// Removes access by group and others, which a previous release granted. If the process may not change the mode, for
/// example of another user's file, it only logs a warning.
pub(super) fn make_private(path: &Path) {
    let of_user = |mode: u32| mode & 0o700;
    let narrow = || {
        let mode = fs::metadata(path)?.permissions().mode() & 0o777;
        if mode == of_user(mode) {
            return Ok(None);
        }
        fs::set_permissions(path, Permissions::from_mode(of_user(mode))).map(|()| Some(mode))
    };
    let file = path.display();
    match narrow() {
        Ok(None) => {}
        Ok(Some(before)) => tracing::warn!(
            %file,
            before = format_args!("{before:04o}"),
            "the mode of the file let other users of this machine read all records, and no longer does"
        ),
        Err::<_, io::Error>(error) => tracing::warn!(
            %file,
            %error,
            "other users of this machine may read the records in the file: run 'chmod 600' on it as its owner"
        ),
    }
}

/// Creates an empty store on an empty backend.
pub(super) fn create_on(path: &Path, backend: &OpenBackend) -> Result<(), StoreError> {
    let backend = backend().map_err(|e| system_error(path, e))?;
    if backend.len().map_err(|e| system_error(path, e))? > 0 {
        return Ok(());
    }
    initialize(path, backend)
}

fn initialize(path: &Path, backend: Box<dyn StorageBackend>) -> Result<(), StoreError> {
    let db = database(backend).map_err(|e| store_error(path, e))?;
    format::initialize(&db).map_err(|e| store_error(path, e))
}

/// Verifies a store without writing to it, and reads its meta table.
pub(super) fn verify(path: &Path, backend: &OpenBackend) -> Result<Meta, StoreError> {
    let damaged = |problem: String| StoreError::Corrupt { location: path.into(), problem };
    let mut db = open_read_only(path, backend)?;
    // redb asserts invariants of its file, and a damaged file may violate them.
    let sound = catch_unwind(AssertUnwindSafe(|| db.check_integrity()))
        .map_err(|_| damaged("its pages contradict each other".into()))?
        .map_err(|e| store_error(path, e.into()))?;
    if !sound {
        return Err(damaged("checksums or page lists do not match".into()));
    }
    let meta = format::meta(&db).map_err(|e| store_error(path, e))?.ok_or_else(|| StoreError::Foreign {
        location: path.into(),
        problem: "a redb file of another program".into(),
    })?;
    if meta.format > FORMAT {
        return Err(StoreError::NewerFormat { location: path.into(), found: meta.format, known: FORMAT });
    }
    Ok(meta)
}

/// Opens a store read-only. Writes by redb do not reach the backend.
pub(super) fn open_read_only(path: &Path, backend: &OpenBackend) -> Result<Database, StoreError> {
    let below = backend().map_err(|e| system_error(path, e))?;
    let len = below.len().map_err(|e| system_error(path, e))?;
    if len == 0 {
        // redb would create a database in an empty backend.
        return Err(StoreError::Corrupt { location: path.into(), problem: "it is empty".into() });
    }
    let overlay = Overlay::new(below).map_err(|e| system_error(path, e))?;
    open_database(path, overlay)
}

/// Opens a verified store for writing.
pub(super) fn writable(path: &Path, backend: &OpenBackend) -> Result<Database, StoreError> {
    let backend = backend().map_err(|e| system_error(path, e))?;
    open_database(path, BoxedBackend(backend))
}

fn open_database(path: &Path, backend: impl StorageBackend) -> Result<Database, StoreError> {
    catch_unwind(AssertUnwindSafe(|| builder().create_with_backend(backend)))
        .map_err(|_| StoreError::Corrupt {
            location: path.into(),
            problem: "its header contradicts its pages".into(),
        })?
        .map_err(|e| store_error(path, e.into()))
}

fn database(backend: Box<dyn StorageBackend>) -> Result<Database, Error> {
    Ok(builder().create_with_backend(BoxedBackend(backend))?)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Maps an error from redb to a [`StoreError`].
pub(super) fn store_error(path: &Path, error: Error) -> StoreError {
    let location = StoreLocation::from(path);
    match error {
        Error::DatabaseAlreadyOpen => StoreError::Locked { location },
        Error::UpgradeRequired(version) => {
            StoreError::Foreign { location, problem: format!("a redb file of version {version}") }
        }
        // redb reports a wrong magic number as invalid data.
        Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
            StoreError::Foreign { location, problem: e.to_string() }
        }
        Error::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            StoreError::Corrupt { location, problem: "it is truncated".into() }
        }
        Error::Io(e) => system_error(path, e),
        Error::Corrupted(problem) => StoreError::Corrupt { location, problem },
        other => StoreError::Corrupt { location, problem: other.to_string() },
    }
}

/// Maps an error from the operating system to a [`StoreError`].
pub(super) fn system_error(path: &Path, source: io::Error) -> StoreError {
    let location = StoreLocation::from(path);
    if is_full(&source) { StoreError::DiskFull { location } } else { StoreError::Io { location, source } }
}

/// Whether a write failed for lack of space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
