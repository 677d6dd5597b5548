//! TLS to servers outside the mesh, verified by public web authorities.

use std::{env, fs, io, path::Path, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::crypto_provider;

/// Where operating systems store their trusted authorities. The first existing file is used.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Environment variable with the path of another file of authorities.
const SYSTEM_ROOTS_VARIABLE: &str = "SSL_CERT_FILE";

/// Certificate authorities that vouch for the host names of servers.
#[derive(Clone, Debug)]
pub struct WebRoots {
    config: Arc<ClientConfig>,
}

impl WebRoots {
    /// Reads the authorities from a PEM file, or those of the operating system.
    ///
    /// # Errors
    /// When no authorities are found.
    pub fn read(file: Option<&Path>) -> io::Result<Self> {
        let named = env::var_os(SYSTEM_ROOTS_VARIABLE);
        let of_system = || SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
        let path = file.or_else(|| named.as_deref().map(Path::new)).or_else(of_system).ok_or_else(|| {
            let what =
                "this system has no file of authorities where it is usual: give one with --oidc-ca-file";
            io::Error::new(io::ErrorKind::NotFound, what)
        })?;
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let content = fs::read(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&content).flatten());
        if roots.is_empty() {
            return Err(invalid(format!("{} has no certificate of an authority, in PEM", path.display())));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config) })
    }

    /// Performs the TLS handshake with the server `host`. The caller must apply a timeout.
    ///
    /// # Errors
    /// When the server's certificate is not valid for `host`.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<>> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("'{host}' is no name of a host"))
        })?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}
