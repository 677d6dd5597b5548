use std::{path::Path, time::Duration};

use fairmesh_model::{SpiffeId, TrustBundle};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{IdentityError, PrivateKey, Trust, Usage, files, trust};

/// The files of an identity that is kept on disk.
const KEY_FILE: &str = "identity.key";
const BUNDLE_FILE: &str = "bundle.pem";

/// A key, its certificate, and the roots that the process trusts.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) key: PrivateKey,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) trust: Trust,
    id: SpiffeId,
    valid: (Duration, Duration),
}

impl Credentials {
    /// Checks a certificate that was issued for a key.
    ///
    /// # Errors
    /// When peers would refuse the certificate now, or it does not fit the key.
    pub fn new(
        key: PrivateKey,
        chain: Vec<CertificateDer<'static>>,
        bundle: TrustBundle,
        now: Duration,
    ) -> Result<Self, IdentityError> {
        let trust = Trust::new(bundle)?;
        let id = trust.verify(&chain, Usage::Server, now)?;
        trust.verify(&chain, Usage::Client, now)?;
        let valid = trust::validity(&chain[0])?;
        let parsed = trust::parse(&chain[0])?;
        let certified: &[u8] = &parsed.public_key().subject_public_key.data;
        if certified != key.rcgen().public_key_raw() {
            return Err(IdentityError::Crypto("the certificate is for another key".into()));
        }
        Ok(Self { key, chain, trust, id, valid })
    }

    /// The identity.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Checks that processes with these roots accept the certificate.
    ///
    /// # Errors
    /// The reason why processes refuse the certificate.
    pub fn check_by(&self, roots: &TrustBundle, now: Duration) -> Result<(), IdentityError> {
        Trust::new(roots.clone())?.verify(&self.chain, Usage::Client, now)?;
        Ok(())
    }

    /// The verifier of peers.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// When the certificate becomes valid and when it expires, since 1970.
    pub fn validity(&self) -> (Duration, Duration) {
        self.valid
    }

    /// The certificate and its issuer's certificate, in DER.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Saves the identity in `folder`, readable by this user alone.
    ///
    /// # Errors
    /// When the files cannot be written; the previous files remain.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        files::secret_folder(folder)?;
        let roots: Vec<_> =
            self.trust.bundle().roots.iter().map(|root| CertificateDer::from(root.as_slice())).collect();
        files::write_public(&folder.join(BUNDLE_FILE), &files::pem(None, &roots))?;
        files::write_secret(&folder.join(KEY_FILE), &files::pem(Some(&self.key), &self.chain))
    }

    /// Returns the same identity with other roots.
    ///
    /// # Errors
    /// When peers with these roots would refuse the certificate, so that a mistake cuts no process off.
    pub(crate) fn with_roots(&self, roots: &[Vec<u8>], now: Duration) -> Result<Self, IdentityError> {
        let bundle = TrustBundle::new(self.trust.bundle().domain.clone(), roots.to_vec());
        Self::new(PrivateKey::from_pkcs8(self.key.pkcs8())?, self.chain.clone(), bundle, now)
    }

    /// The content of the roots' file in `folder`; `None` if there is none.
    pub(crate) fn read_bundle(folder: &Path) -> Result<Option<Vec<u8>>, IdentityError> {
        files::read(&folder.join(BUNDLE_FILE))
    }

    /// Parses the roots in that content.
    pub(crate) fn roots_in(folder: &Path, content: &[u8]) -> Result<Vec<Vec<u8>>, IdentityError> {
        let roots = files::certificates_of(&folder.join(BUNDLE_FILE), content)?;
        Ok(roots.iter().map(|root| root.to_vec()).collect())
    }

    /// Whether there is an identity in `folder`, usable or not.
    pub(crate) fn are_kept(folder: &Path) -> bool {
        folder.join(KEY_FILE).exists()
    }

    /// The identity in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is not valid now.
    pub fn load(folder: &Path, now: Duration) -> Result<Option<Self>, IdentityError> {
        let own = folder.join(KEY_FILE);
        let (Some(content), Some(roots)) = (files::read(&own)?, Self::read_bundle(folder)?) else {
            return Ok(None);
        };
        let chain = files::certificates_of(&own, &content)?;
        let roots = Self::roots_in(folder, &roots)?;
        let domain = trust::id_of(&chain[0], Usage::Client)?.domain;
        Self::new(files::key_of(&own, &content)?, chain, TrustBundle::new(domain, roots), now).map(Some)
    }
}
