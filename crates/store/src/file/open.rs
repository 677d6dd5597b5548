//! From a path to a database that can be trusted, or to words that say why not.

use std::{
    fs::{self, File},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Builder, Database, Error, StorageBackend};

use super::{
    backend::{Direct, OpenBackend, Overlay, of_file},
    format::{self, FORMAT, Meta},
};
use crate::{Place, StoreError};

/// How much of the file redb may keep in memory; values are served from elsewhere.
const CACHE_BYTES: usize = 64 << 20;

/// Creates an empty store file at `path`, where there is none.
///
/// Under another name until it is whole: a file that is empty or cut short was a store once, and is never taken for a
/// new one.
pub(super) fn create_file(path: &Path) -> Result<(), StoreError> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    // What is left of an attempt that was cut short; the lock is held, so nobody else is at it.
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(system_error(&fresh, e)),
        _ => {}
    }
    let backend =
        File::create_new(&fresh).and_then(|_| of_file(&fresh)).map_err(|e| system_error(&fresh, e))?;
    initialize(path, backend)?;
    let durable = || {
        File::open(&fresh)?.sync_all()?;
        fs::rename(&fresh, path)?;
        // Without this the name may be gone after a power failure, and with it acknowledged writes.
        File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
    };
    durable().map_err(|e| system_error(path, e))
}

/// Creates an empty store on a backend that holds nothing yet.
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

/// Checks all of a store without writing to it, and reads what its meta table says.
pub(super) fn verify(path: &Path, backend: &OpenBackend) -> Result<Meta, StoreError> {
    let damaged = |problem: String| StoreError::Corrupt { place: path.into(), problem };
    let mut db = view(path, backend)?;
    // redb asserts what it takes for granted about its file; a damaged one may break that.
    let sound = catch_unwind(AssertUnwindSafe(|| db.check_integrity()))
        .map_err(|_| damaged("its pages contradict each other".into()))?
        .map_err(|e| store_error(path, e.into()))?;
    if !sound {
        return Err(damaged("checksums or page lists do not match".into()));
    }
    let meta = format::meta(&db).map_err(|e| store_error(path, e))?.ok_or_else(|| StoreError::Foreign {
        place: path.into(),
        problem: "a redb file of another program".into(),
    })?;
    if meta.format > FORMAT {
        return Err(StoreError::Newer { place: path.into(), found: meta.format, known: FORMAT });
    }
    Ok(meta)
}

/// Opens a store to look at; nothing that redb writes reaches the backend.
pub(super) fn view(path: &Path, backend: &OpenBackend) -> Result<Database, StoreError> {
    let below = backend().map_err(|e| system_error(path, e))?;
    let len = below.len().map_err(|e| system_error(path, e))?;
    if len == 0 {
        // redb would take it for a new database.
        return Err(StoreError::Corrupt { place: path.into(), problem: "it is empty".into() });
    }
    let overlay = Overlay::new(below).map_err(|e| system_error(path, e))?;
    open_database(path, overlay)
}

/// Opens a verified store for writing.
pub(super) fn writable(path: &Path, backend: &OpenBackend) -> Result<Database, StoreError> {
    let backend = backend().map_err(|e| system_error(path, e))?;
    open_database(path, Direct(backend))
}

fn open_database(path: &Path, backend: impl StorageBackend) -> Result<Database, StoreError> {
    catch_unwind(AssertUnwindSafe(|| builder().create_with_backend(backend)))
        .map_err(|_| StoreError::Corrupt {
            place: path.into(),
            problem: "its header contradicts its pages".into(),
        })?
        .map_err(|e| store_error(path, e.into()))
}

fn database(backend: Box<dyn StorageBackend>) -> Result<Database, Error> {
    Ok(builder().create_with_backend(Direct(backend))?)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// What redb said, for people.
pub(super) fn store_error(path: &Path, error: Error) -> StoreError {
    let place = Place::from(path);
    match error {
        Error::DatabaseAlreadyOpen => StoreError::Locked { place },
        Error::UpgradeRequired(version) => {
            StoreError::Foreign { place, problem: format!("a redb file of version {version}") }
        }
        // redb reports a wrong magic number so.
        Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
            StoreError::Foreign { place, problem: e.to_string() }
        }
        Error::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            StoreError::Corrupt { place, problem: "it is cut short".into() }
        }
        Error::Io(e) => system_error(path, e),
        Error::Corrupted(problem) => StoreError::Corrupt { place, problem },
        other => StoreError::Corrupt { place, problem: other.to_string() },
    }
}

/// What the operating system said, for people.
pub(super) fn system_error(path: &Path, source: io::Error) -> StoreError {
    let place = Place::from(path);
    if is_full(&source) { StoreError::Full { place } } else { StoreError::Unreadable { place, source } }
}

/// Whether a write failed because there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
