use std::{path::Path, time::Duration};

use fairmesh_model::{SpiffeId, TrustBundle};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{IdentityError, PrivateKey, Trust, Usage, chain_verification, pem_files};

/// Names of the files of a saved identity.
const KEY_FILE: &str = "identity.key";
const BUNDLE_FILE: &str = "bundle.pem";

/// A private key, its certificate, and the roots that the process trusts.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) key: PrivateKey,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) trust: Trust,
    id: SpiffeId,
    valid: (Duration, Duration),
}

impl Credentials {
    /// Creates credentials from a certificate that was issued for a key.
    ///
    /// # Errors
    /// When peers would refuse the certificate now, or it was issued for another key.
    pub fn new(
        key: PrivateKey,
        chain: Vec<CertificateDer<'static>>,
        bundle: TrustBundle,
        now: Duration,
    ) -> Result<Self, IdentityError> {
        let trust = Trust::new(bundle)?;
        let id = trust.verify(&chain, Usage::Server, now)?;
        trust.verify(&chain, Usage::Client, now)?;
        let valid = chain_verification::validity(&chain[0])?;
        let parsed = chain_verification::parse(&chain[0])?;
        let certified: &[u8] = &parsed.public_key().subject_public_key.data;
        if certified != key.rcgen().public_key_raw() {
            return Err(IdentityError::Crypto("the certificate is for another key".into()));
        }
        Ok(Self { key, chain, trust, id, valid })
    }

    /// Returns the identity in the certificate.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Checks that processes with these roots accept the certificate.
    ///
    /// # Errors
    /// Why processes would refuse the certificate.
    pub fn check_by(&self, roots: &TrustBundle, now: Duration) -> Result<(), IdentityError> {
        Trust::new(roots.clone())?.verify(&self.chain, Usage::Client, now)?;
        Ok(())
    }

    /// Returns the verifier of peers.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Returns when the certificate becomes valid and when it expires, as times since 1970.
    pub fn validity(&self) -> (Duration, Duration) {
        self.valid
    }

    /// Returns the certificate and its issuer's certificate, in DER.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Saves the identity in `folder`, readable only by this user.
    ///
    /// # Errors
    /// When the files cannot be written; the previous files then remain.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        pem_files::secret_folder(folder)?;
        let roots: Vec<_> =
            self.trust.bundle().roots.iter().map(|root| CertificateDer::from(root.as_slice())).collect();
        pem_files::write_public(&folder.join(BUNDLE_FILE), &pem_files::pem(None, &roots))?;
        pem_files::write_secret(&folder.join(KEY_FILE), &pem_files::pem(Some(&self.key), &self.chain))
    }

    /// Returns the same identity with other trusted roots.
    ///
    /// # Errors
    /// When peers with these roots would refuse the certificate. This protects against a mistake that cuts the
    /// process off.
    pub(crate) fn with_roots(&self, roots: &[Vec<u8>], now: Duration) -> Result<Self, IdentityError> {
        let bundle = TrustBundle::new(self.trust.bundle().domain.clone(), roots.to_vec());
        Self::new(PrivateKey::from_pkcs8(self.key.pkcs8())?, self.chain.clone(), bundle, now)
    }

    /// Reads the file of roots in `folder`; `None` if it does not exist.
    pub(crate) fn read_bundle(folder: &Path) -> Result<Option<Vec<u8>>, IdentityError> {
        pem_files::read(&folder.join(BUNDLE_FILE))
    }

    /// Parses the roots in the content of the file of roots.
    pub(crate) fn roots_in(folder: &Path, content: &[u8]) -> Result<Vec<Vec<u8>>, IdentityError> {
        let roots = pem_files::certificates_of(&folder.join(BUNDLE_FILE), content)?;
        Ok(roots.iter().map(|root| root.to_vec()).collect())
    }

    /// Whether `folder` contains an identity, usable or not.
    pub(crate) fn are_kept(folder: &Path) -> bool {
        folder.join(KEY_FILE).exists()
    }

    /// Loads the identity in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// When the identity cannot be read, or is not valid now.
    pub fn load(folder: &Path, now: Duration) -> Result<Option<Self>, IdentityError> {
        let own = folder.join(KEY_FILE);
        let (Some(content), Some(roots)) = (pem_files::read(&own)?, Self::read_bundle(folder)?) else {
            return Ok(None);
        };
        let chain = pem_files::certificates_of(&own, &content)?;
        let roots = Self::roots_in(folder, &roots)?;
        let domain = chain_verification::id_of(&chain[0], Usage::Client)?.domain;
        Self::new(pem_files::key_of(&own, &content)?, chain, TrustBundle::new(domain, roots), now).map(Some)
    }
}
