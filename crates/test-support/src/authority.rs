use std::{fmt, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};

/// A certificate authority of a test. Certificates are for peers at 127.0.0.1.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Default for Authority {
    fn default() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }
}

impl Authority {
    /// Issues a certificate.
    pub fn issue(&self) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certificate { chain: vec![certificate.der().clone()], key: key.into() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    /// A client that shows this certificate, and accepts servers of this authority.
    pub fn client(&self, own: &Certificate) -> Arc<ClientConfig> {
        let config = ClientConfig::builder_with_provider(default_provider().into());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(self.roots());
        Arc::new(config.with_client_auth_cert(own.chain.clone(), own.key.clone_key()).unwrap())
    }

    /// A server that shows this certificate, and accepts clients of this authority.
    pub fn server(&self, own: &Certificate) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots().into(), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_client_cert_verifier(verifier.build().unwrap());
        Arc::new(config.with_single_cert(own.chain.clone(), own.key.clone_key()).unwrap())
    }
}
