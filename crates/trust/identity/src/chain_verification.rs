//! Verification of certificate chains.

use std::time::Duration;

use fairmesh_model::{SpiffeId, TrustBundle, TrustDomain};
use tokio_rustls::rustls::{
    crypto::{WebPkiSupportedAlgorithms, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime},
};
use webpki::{EndEntityCert, KeyUsage, RawPublicKeyEntity, anchor_from_trusted_cert};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

use crate::{IdentityError, JoinToken, Refused, RevocationList, chain_refusal::MAX_CHAIN, join_token};

/// Maximum difference between the clocks of two machines.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// The purpose for which a certificate is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To open connections.
    Client,
    /// To accept connections.
    Server,
}

/// Identifies a root by a digest of its name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootDigest([u8; 32]);

impl RootDigest {
    /// Returns the digest of a root in DER.
    pub(crate) fn of_certificate(root: &[u8]) -> Result<Self, IdentityError> {
        let certificate = CertificateDer::from(root);
        let anchor = anchor_from_trusted_cert(&certificate).map_err(IdentityError::crypto)?;
        Ok(Self::of(&anchor))
    }

    fn of(anchor: &TrustAnchor<'_>) -> Self {
        let (name, key) = (anchor.subject.as_ref(), anchor.subject_public_key_info.as_ref());
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX).to_be_bytes();
        Self(join_token::digest(&[&length[..], name, key].concat()))
    }
}

/// The roots of a trust domain, prepared for verification.
#[derive(Clone, Debug)]
pub struct Trust {
    bundle: TrustBundle,
    anchors: Vec<TrustAnchor<'static>>,
    pub(crate) revocations: RevocationList,
}

impl Trust {
    /// Prepares the roots of a bundle.
    ///
    /// # Errors
    /// When a root is not a certificate.
    pub fn new(bundle: TrustBundle) -> Result<Self, IdentityError> {
        let anchor = |root: &Vec<u8>| {
            let certificate = CertificateDer::from(root.as_slice());
            anchor_from_trusted_cert(&certificate).map(|anchor| anchor.to_owned())
        };
        let anchors = bundle.roots.iter().map(anchor).collect::<Result<_, _>>();
        let anchors = anchors.map_err(IdentityError::crypto)?;
        Ok(Self { anchors, bundle, revocations: RevocationList::default() })
    }

    /// Makes the verifier also refuse the certificates on a revocation list, including entries added later.
    #[must_use]
    pub fn with_revocations(self, revocations: RevocationList) -> Self {
        Self { revocations, ..self }
    }

    /// Returns the trust domain.
    pub fn domain(&self) -> &TrustDomain {
        &self.bundle.domain
    }

    /// Returns the roots.
    pub fn bundle(&self) -> &TrustBundle {
        &self.bundle
    }

    /// Trusts only the root of `bundle` whose digest is in the token. For the first message to a process that knows
    /// no roots yet.
    ///
    /// # Errors
    /// When a root is not a certificate.
    pub fn pinned(bundle: &TrustBundle, token: &JoinToken) -> Result<Self, IdentityError> {
        let roots: Vec<_> = bundle
            .roots
            .iter()
            .filter(|root| crate::join_token::digest(root) == token.root)
            .cloned()
            .collect();
        Self::new(TrustBundle::new(bundle.domain.clone(), roots))
    }

    /// Verifies the chain of a server that also sends its root. A token contains the digest of that root.
    pub(crate) fn verify_pinned(
        chain: &[CertificateDer<'_>],
        token: &JoinToken,
        now: Duration,
    ) -> Result<SpiffeId, Refused> {
        let leaf = chain.first().ok_or(Refused::ChainLength(0))?;
        let domain = id_of(leaf, Usage::Server)?.domain;
        let roots = chain.iter().take(MAX_CHAIN).map(|one| one.to_vec()).collect();
        let trust = Self::pinned(&TrustBundle::new(domain, roots), token).map_err(|_| Refused::Malformed)?;
        trust.verify(chain, Usage::Server, now)
    }

    /// Returns the root that issued a chain.
    pub(crate) fn root_of(&self, chain: &[CertificateDer<'_>]) -> Option<CertificateDer<'static>> {
        let last = chain.last()?;
        let roots = self.bundle.roots.iter().map(|root| CertificateDer::from(root.as_slice()));
        roots.into_iter().find(|root| is_issued_by(last, root)).map(CertificateDer::into_owned)
    }

    /// Verifies a chain that starts with the peer's own certificate, and returns the peer's identity.
    ///
    /// # Errors
    /// [`Refused`] with the reason.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: Duration,
    ) -> Result<SpiffeId, Refused> {
        self.verify_to_root(chain, usage, now).map(|(id, _)| id)
    }

    /// Verifies a chain, and returns the identity and the root.
    pub(crate) fn verify_to_root(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: Duration,
    ) -> Result<(SpiffeId, RootDigest), Refused> {
        let (leaf, intermediates) = match chain {
            [leaf, rest @ ..] if chain.len() <= MAX_CHAIN => (leaf, rest),
            _ => return Err(Refused::ChainLength(chain.len())),
        };
        let id = id_of(leaf, usage)?;
        let root = self.verify_path(leaf, intermediates, usage, now)?;
        if id.domain != self.bundle.domain {
            return Err(Refused::OtherDomain(id));
        }
        self.revocations.check(leaf, usage)?;
        Ok((id, root))
    }

    /// Verifies the chain of a server that proves a host name or address instead of an identity.
    ///
    /// # Errors
    /// When the chain is not valid, or is for other hosts.
    pub(crate) fn verify_host(
        &self,
        chain: &[CertificateDer<'_>],
        host: &str,
        now: Duration,
    ) -> Result<(), Refused> {
        let (leaf, intermediates) = match chain {
            [leaf, rest @ ..] if chain.len() <= MAX_CHAIN => (leaf, rest),
            _ => return Err(Refused::ChainLength(chain.len())),
        };
        self.verify_path(leaf, intermediates, Usage::Server, now)?;
        let certificate = EndEntityCert::try_from(leaf).map_err(|_| Refused::Malformed)?;
        let name = ServerName::try_from(host).map_err(|_| Refused::Malformed)?;
        certificate.verify_is_valid_for_subject_name(&name).map_err(|_| {
            let remedy = format!("start the control plane with --admin-name {host}");
            Refused::Other(format!("it is for other hosts than {host}; {remedy}"))
        })
    }

    /// Whether `root` belongs to this bundle.
    pub(crate) fn has_root(&self, root: &RootDigest) -> bool {
        self.anchors.iter().any(|anchor| RootDigest::of(anchor) == *root)
    }

    /// Verifies the signatures, times and constraints of a chain. Allows for clock skew.
    fn verify_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: Duration,
    ) -> Result<RootDigest, Refused> {
        let leaf = EndEntityCert::try_from(leaf).map_err(|_| Refused::Malformed)?;
        let verify = |now| {
            let usage = match usage {
                Usage::Client => KeyUsage::client_auth(),
                Usage::Server => KeyUsage::server_auth(),
            };
            let at = UnixTime::since_unix_epoch(now);
            let path =
                leaf.verify_for_usage(algorithms().all, &self.anchors, intermediates, at, usage, None, None);
            path.map(|path| RootDigest::of(path.anchor()))
        };
        let verified = match verify(now) {
            Err(webpki::Error::CertExpired { .. }) => verify(now.saturating_sub(CLOCK_SKEW)),
            Err(webpki::Error::CertNotValidYet { .. }) => verify(now + CLOCK_SKEW),
            verified => verified,
        };
        verified.map_err(|error| self.refusal(&error))
    }

    fn refusal(&self, error: &webpki::Error) -> Refused {
        use webpki::Error as E;
        match error {
            E::CertExpired { .. } => Refused::Expired,
            E::CertNotValidYet { .. } => Refused::NotYetValid,
            E::UnknownIssuer | E::InvalidSignatureForPublicKey => {
                Refused::UnknownIssuer(self.bundle.domain.clone())
            }
            E::CaUsedAsEndEntity | E::EndEntityUsedAsCa | E::RequiredEkuNotFoundContext(_) => {
                Refused::WrongUsage
            }
            E::BadDer | E::BadDerTime => Refused::Malformed,
            other => Refused::Other(other.to_string()),
        }
    }
}

/// The accepted signature algorithms.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Returns the single SPIFFE id in a certificate for this usage.
pub(crate) fn id_of(certificate: &CertificateDer<'_>, usage: Usage) -> Result<SpiffeId, Refused> {
    let parsed = parse(certificate)?;
    let extended = parsed.extended_key_usage().map_err(|_| Refused::Malformed)?;
    let fits = extended.is_some_and(|extended| match usage {
        Usage::Client => extended.value.client_auth,
        Usage::Server => extended.value.server_auth,
    });
    if !fits {
        return Err(Refused::WrongUsage);
    }
    let names =
        parsed.subject_alternative_name().map_err(|_| Refused::Malformed)?.ok_or(Refused::NotOneId)?;
    match names.value.general_names[..] {
        [GeneralName::URI(uri)] => uri.parse().map_err(|_| Refused::NotOneId),
        _ => Err(Refused::NotOneId),
    }
}

pub(crate) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Refused> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(Refused::Malformed),
    }
}

/// Whether `root` issued a certificate. Successive roots may have the same name, so the signature is verified.
pub(crate) fn is_issued_by(certificate: &CertificateDer<'_>, root: &CertificateDer<'_>) -> bool {
    let (Ok(issued), Ok(by)) = (parse(certificate), parse(root)) else { return false };
    if issued.issuer().as_raw() != by.subject().as_raw() {
        return false;
    }
    let key = SubjectPublicKeyInfoDer::from(by.public_key().raw);
    let Ok(key) = RawPublicKeyEntity::try_from(&key) else { return false };
    let (signed, signature) = (issued.tbs_certificate.as_ref(), &issued.signature_value.data);
    algorithms().all.iter().any(|algorithm| key.verify_signature(*algorithm, signed, signature).is_ok())
}

/// Whether two certificates have the same name and key.
pub(crate) fn is_same_authority(one: &CertificateDer<'_>, other: &CertificateDer<'_>) -> bool {
    let (Ok(one), Ok(other)) = (parse(one), parse(other)) else { return false };
    one.subject().as_raw() == other.subject().as_raw() && one.public_key().raw == other.public_key().raw
}

/// Returns when a certificate becomes valid and when it expires, as times since 1970.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Result<(Duration, Duration), Refused> {
    let validity = parse(certificate)?.tbs_certificate.validity;
    let seconds =
        |time: x509_parser::time::ASN1Time| Duration::from_secs(time.timestamp().try_into().unwrap_or(0));
    Ok((seconds(validity.not_before), seconds(validity.not_after)))
}

/// Returns the serial number of a certificate, without leading zeros.
pub(crate) fn serial(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, Refused> {
    let parsed = parse(certificate)?;
    Ok(parsed.raw_serial().iter().copied().skip_while(|byte| *byte == 0).collect())
}
