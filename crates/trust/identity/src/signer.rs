//! Signs a server's TLS handshakes, with a local key or on key servers.

mod certificate_verify;
mod counts;
mod remote_key;
mod remote_keys;

use std::sync::Arc;

use tokio::time::Instant;
use tokio_rustls::rustls::{
    Error, SignatureAlgorithm, SignatureScheme,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer},
    sign::{self, CertifiedKey, SigningKey},
};
use webpki::EndEntityCert;
use x509_parser::{oid_registry::OID_SIG_ED25519, public_key::PublicKey};

pub use self::{
    certificate_verify::certificate_verify,
    counts::{SignatureCounts, SignedBy},
    remote_key::{RemoteKey, RemoteKeyConfig, RemoteKeyError},
    remote_keys::RemoteKeys,
};
use crate::chain_verification::{self, algorithms};

/// Signs handshakes for a certificate with a local key or on key servers. If both are given, the local key is the
/// fallback.
///
/// A signature on a key server blocks the thread, because rustls signs synchronously. Such handshakes need separate
/// threads.
#[derive(Debug)]
pub struct Signer {
    local: Option<Arc<dyn SigningKey>>,
    remote: Option<Arc<RemoteSigner>>,
    counts: Arc<SignatureCounts>,
}

/// A key on key servers, and the certificate whose public key their signatures must match.
#[derive(Debug)]
struct RemoteSigner {
    keys: Arc<RemoteKeys>,
    certificate: CertificateDer<'static>,
    algorithm: SignatureAlgorithm,
    schemes: &'static [SignatureScheme],
}

/// Signs one handshake.
#[derive(Debug)]
struct HandshakeSigner {
    scheme: SignatureScheme,
    local: Option<Box<dyn sign::Signer>>,
    remote: Option<Arc<RemoteSigner>>,
    counts: Arc<SignatureCounts>,
}

impl Signer {
    /// Combines a certificate chain with its key. `remote` is preferred over `local`; at least one of them must be
    /// given.
    ///
    /// # Errors
    /// When the certificate or a key cannot be used, or the key does not belong to the certificate.
    pub fn certify(
        chain: Vec<CertificateDer<'static>>,
        local: Option<PrivateKeyDer<'static>>,
        remote: Option<Arc<RemoteKeys>>,
        counts: &Arc<SignatureCounts>,
    ) -> Result<CertifiedKey, Error> {
        let certificate = chain.first().cloned().ok_or(Error::NoCertificatesPresented)?;
        let provider = default_provider();
        let local = local.map(|key| CertifiedKey::from_der(chain.clone(), key, &provider)).transpose()?;
        let remote = remote.map(|keys| RemoteSigner::new(keys, certificate)).transpose()?;
        let local = local.map(|certified| certified.key);
        let signer = Self { local, remote: remote.map(Arc::new), counts: Arc::clone(counts) };
        Ok(CertifiedKey::new(chain, Arc::new(signer)))
    }
}

impl SigningKey for Signer {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn sign::Signer>> {
        let counts = Arc::clone(&self.counts);
        let Some(remote) = &self.remote else {
            let local = self.local.as_ref()?.choose_scheme(offered)?;
            let scheme = local.scheme();
            return Some(Box::new(HandshakeSigner { scheme, local: Some(local), remote: None, counts }));
        };
        let scheme = *remote.schemes.iter().find(|scheme| offered.contains(scheme))?;
        let local = self.local.as_ref().and_then(|local| local.choose_scheme(&[scheme]));
        let remote = Some(Arc::clone(remote));
        Some(Box::new(HandshakeSigner { scheme, local, remote, counts }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.local.as_ref().and_then(|local| local.public_key())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match (&self.remote, &self.local) {
            (Some(remote), _) => remote.algorithm,
            (None, Some(local)) => local.algorithm(),
            (None, None) => SignatureAlgorithm::Unknown(0),
        }
    }
}

impl HandshakeSigner {
    /// Signs on the first key server that does. `None` if all are failing and there is a local key.
    fn sign_remotely(
        &self,
        remote: &RemoteSigner,
        message: &[u8],
    ) -> Option<Result<Vec<u8>, RemoteKeyError>> {
        let mut signed = None;
        for key in remote.keys.in_order(self.local.is_none()) {
            signed = Some(remote.sign(key, self.scheme, message));
            if let Some(Ok(_)) = signed {
                break;
            }
        }
        signed
    }

    fn sign_locally(&self, message: &[u8], by: SignedBy) -> Result<Vec<u8>, Error> {
        let local = self.local.as_ref().ok_or_else(|| Error::General("there is no key here".into()))?;
        let began = Instant::now();
        let signed = local.sign(message);
        self.counts.record(signed.is_ok().then_some(by), began.elapsed());
        signed
    }
}

impl sign::Signer for HandshakeSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let Some(remote) = &self.remote else { return self.sign_locally(message, SignedBy::Local) };
        let began = Instant::now();
        let signed = self.sign_remotely(remote, message);
        if let Some(signed) = &signed {
            self.counts.record(signed.is_ok().then_some(SignedBy::KeyServer), began.elapsed());
        }
        match signed {
            Some(Ok(signature)) => Ok(signature),
            Some(Err(error)) if self.local.is_none() => Err(Error::General(error.to_string())),
            Some(Err(_)) | None => self.sign_locally(message, SignedBy::Fallback),
        }
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

impl RemoteSigner {
    fn new(keys: Arc<RemoteKeys>, certificate: CertificateDer<'static>) -> Result<Self, Error> {
        let (algorithm, schemes) = schemes_of(&certificate)
            .ok_or_else(|| Error::General("key servers do not sign with keys of this type".into()))?;
        Ok(Self { keys, certificate, algorithm, schemes })
    }

    /// Signs on a key server and verifies the signature. An invalid signature counts as a failure of the key
    /// server.
    fn sign(
        &self,
        key: &RemoteKey,
        scheme: SignatureScheme,
        message: &[u8],
    ) -> Result<Vec<u8>, RemoteKeyError> {
        let hash = certificate_verify::transcript_hash(message).ok_or(RemoteKeyError::OtherMessage)?;
        let signature = key.sign(scheme.into(), hash)?;
        if self.fits(scheme, message, &signature) {
            return Ok(signature);
        }
        Err(key.failed(RemoteKeyError::WrongSignature))
    }

    fn fits(&self, scheme: SignatureScheme, message: &[u8], signature: &[u8]) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(&self.certificate) else { return false };
        let known = algorithms().mapping.iter().find(|(known, _)| *known == scheme);
        known.is_some_and(|(_, algorithms)| {
            // In TLS 1.3, an ECDSA scheme has exactly one curve, which comes first.
            algorithms
                .first()
                .is_some_and(|algorithm| certificate.verify_signature(*algorithm, message, signature).is_ok())
        })
    }
}

/// Returns the type of a certificate's key, and its TLS 1.3 signature schemes in order of preference.
fn schemes_of(certificate: &CertificateDer<'_>) -> Option<(SignatureAlgorithm, &'static [SignatureScheme])> {
    use SignatureScheme as Scheme;
    const RSA: &[SignatureScheme] = &[Scheme::RSA_PSS_SHA256, Scheme::RSA_PSS_SHA384, Scheme::RSA_PSS_SHA512];
    let parsed = chain_verification::parse(certificate).ok()?;
    let key = parsed.public_key();
    if key.algorithm.algorithm == OID_SIG_ED25519 {
        return Some((SignatureAlgorithm::ED25519, &[Scheme::ED25519]));
    }
    match key.parsed().ok()? {
        PublicKey::RSA(_) => Some((SignatureAlgorithm::RSA, RSA)),
        PublicKey::EC(point) => match point.key_size() {
            256 => Some((SignatureAlgorithm::ECDSA, &[Scheme::ECDSA_NISTP256_SHA256])),
            384 => Some((SignatureAlgorithm::ECDSA, &[Scheme::ECDSA_NISTP384_SHA384])),
            _ => None,
        },
        _ => None,
    }
}
