//! Reads and writes keys and certificates on disk, as PEM.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _};

use crate::{IdentityError, PrivateKey};

/// Mode of files with keys: only the owner may read them.
const SECRET: u32 = 0o600;
const SECRET_FOLDER: u32 = 0o700;
const PUBLIC: u32 = 0o644;

/// Creates a folder for secrets, or restricts the permissions of an existing one.
pub(crate) fn secret_folder(path: &Path) -> Result<(), IdentityError> {
    let failed = |source| IdentityError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(SECRET_FOLDER).create(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SECRET_FOLDER)).map_err(failed)
}

/// Atomically replaces a file with secrets.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    replace(path, content, SECRET).map_err(|source| IdentityError::Io { path: path.to_owned(), source })
}

/// Atomically replaces a file that everyone may read.
pub(crate) fn write_public(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    replace(path, content, PUBLIC).map_err(|source| IdentityError::Io { path: path.to_owned(), source })
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    // A leftover from an earlier crash may have another mode.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    sync_folder_of(path)
}

/// Syncs the folder of `path`, so that changes to its entries are durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Reads a file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, IdentityError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Io { path: path.to_owned(), source }),
    }
}

/// Encodes a key and certificates as PEM, with the key first.
pub(crate) fn pem(key: Option<&PrivateKey>, certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut text = String::new();
    if let Some(key) = key {
        push(&mut text, "PRIVATE KEY", key.pkcs8());
    }
    for certificate in certificates {
        push(&mut text, "CERTIFICATE", certificate);
    }
    text.into_bytes()
}

fn push(text: &mut String, label: &str, der: &[u8]) {
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let encoded = BASE64_STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
}

/// Parses the key in a file's content.
pub(crate) fn key_of(path: &Path, content: &[u8]) -> Result<PrivateKey, IdentityError> {
    let invalid = |problem: String| IdentityError::InvalidFile { path: path.to_owned(), problem };
    let key = PrivatePkcs8KeyDer::from_pem_slice(content)
        .map_err(|error| invalid(format!("holds no private key: {error}")))?;
    PrivateKey::from_pkcs8(key.secret_pkcs8_der()).map_err(|error| invalid(error.to_string()))
}

/// Parses the certificates in a file's content.
pub(crate) fn certificates_of(
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => {
            Err(IdentityError::InvalidFile { path: path.to_owned(), problem: "holds no certificate".into() })
        }
        Err(error) => Err(IdentityError::InvalidFile { path: path.to_owned(), problem: error.to_string() }),
    }
}
