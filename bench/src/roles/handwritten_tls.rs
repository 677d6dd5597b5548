//! Mutual TLS as a careful programmer without a mesh sets it up: plain rustls, certificates in files issued by a
//! private authority for a host name, and the standard verifiers.

use std::{fs, io, path::Path, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        client::WebPkiServerVerifier,
        crypto::{CryptoProvider, aws_lc_rs},
        pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
        server::WebPkiClientVerifier,
        version::TLS13,
    },
};

use super::BoxError;

const HOST: &str = "echo.bench";
/// The files, in DER and PKCS #8.
const ROOT: &str = "root.der";
const CERTIFICATE: &str = "certificate.der";
const KEY: &str = "key.der";

/// Creates an authority, and a certificate for clients and servers, with P-256 keys as in the mesh.
pub(crate) fn issue(folder: &Path) -> Result<(), BoxError> {
    let key = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let root_key = key()?;
    let root = params.self_signed(&root_key)?;
    let issuer = Issuer::new(params, root_key);
    let own = key()?;
    let mut params = CertificateParams::new([HOST.to_owned()])?;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&own, &issuer)?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join(ROOT), root.der())?;
    fs::write(folder.join(CERTIFICATE), certificate.der())?;
    fs::write(folder.join(KEY), own.serialize_der())?;
    Ok(())
}

struct Files {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Files {
    fn read(folder: &Path) -> Result<Self, BoxError> {
        let read = |name| -> io::Result<Vec<u8>> { fs::read(folder.join(name)) };
        let mut roots = RootCertStore::empty();
        roots.add(read(ROOT)?.into())?;
        let chain = vec![read(CERTIFICATE)?.into()];
        Ok(Self { roots: Arc::new(roots), chain, key: PrivatePkcs8KeyDer::from(read(KEY)?).into() })
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Host name of every server.
pub(super) fn name() -> ServerName<'static> {
    // Proof: the text is a host name.
    #[allow(clippy::unwrap_used)]
    ServerName::try_from(HOST).unwrap()
}

/// TLS acceptor that requires a client certificate of the authority.
pub(super) fn acceptor(folder: &Path) -> Result<TlsAcceptor, BoxError> {
    let Files { roots, chain, key } = Files::read(folder)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier);
    Ok(Arc::new(config.with_single_cert(chain, key)?).into())
}

/// TLS connector that presents its certificate, and verifies the server's certificate by host name.
pub(super) fn connector(folder: &Path) -> Result<TlsConnector, BoxError> {
    let Files { roots, chain, key } = Files::read(folder)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(verifier);
    Ok(Arc::new(config.with_client_auth_cert(chain, key)?).into())
}
