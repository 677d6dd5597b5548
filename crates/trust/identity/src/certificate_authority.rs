//! The certificate authority of a control plane.

mod future_certificates;
mod jwt_signer;
mod root_retirement;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::{Label, MAX_ROOTS, MeshRole, SpiffeId, SpiffePath, TrustBundle, TrustDomain};
use jwt_signer::JwtSigner;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use time::OffsetDateTime;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

use crate::{
    CLOCK_SKEW, CertificateInfo, IdentityError, PrivateKey, Refused, Trust, Usage, chain_verification,
    join_token::digest, pem_files, renewal::RENEWAL,
};

/// Validity of process certificates.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity of a root.
const ROOT_LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);
/// Time after a root's creation at which all running programs trust it. Programs learn of a new root when they renew
/// their certificates.
const ROOT_LEARNED: Duration = RENEWAL.saturating_add(CLOCK_SKEW);
/// Validity of an intermediate: longer than a long absence of the person who holds the root key.
const ISSUER_LIFETIME: Duration = Duration::from_secs(180 * 24 * 3600);
/// Remaining validity at which an intermediate is replaced, if the root's key is present.
const ISSUER_RENEWAL: Duration = Duration::from_secs(60 * 24 * 3600);

/// File with all roots, the newest last. Not secret.
const BUNDLE_FILE: &str = "bundle.pem";
/// File with the newest root and its key. It is needed only to create intermediates, and may be kept elsewhere.
const ROOT_FILE: &str = "root.key";
/// File with this control plane's intermediate and its key.
const ISSUER_FILE: &str = "issuer.key";
/// File for an intermediate that no known root issued. The intermediate is moved there.
const UNUSED_ISSUER_FILE: &str = "unused-issuer.key";

/// Issues the certificates of one trust domain. Its keys and roots are in a folder.
pub struct Authority {
    domain: TrustDomain,
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    roots: Vec<CertificateDer<'static>>,
    issuer: CertificateDer<'static>,
    signer: Issuer<'static, KeyPair>,
    /// SHA-256 of the intermediate's file at the last read or write.
    seen: Option<[u8; 32]>,
    /// Time since 1970 at which this process began to issue certificates under the intermediate's root.
    since: Duration,
    jwt: JwtSigner,
}

impl State {
    fn issue_by(&mut self, issuer: CertificateDer<'static>, signer: Issuer<'static, KeyPair>, now: Duration) {
        if root_above(&issuer, &self.roots) != root_above(&self.issuer, &self.roots) {
            self.since = now;
        }
        (self.issuer, self.signer) = (issuer, signer);
    }
}

/// A certificate, and the certificate of its issuer.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The chain in TLS order: the issued certificate comes first.
    pub chain: Vec<CertificateDer<'static>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in `folder`. Creates an intermediate if there is only a root, and a new root and
    /// intermediate if the folder is empty. `now` is the time since 1970.
    ///
    /// # Errors
    /// When the folder cannot be used, or belongs to another trust domain.
    pub fn open(folder: &Path, domain: &TrustDomain, now: Duration) -> Result<Self, IdentityError> {
        pem_files::secret_folder(folder)?;
        let bundle = folder.join(BUNDLE_FILE);
        let roots = match pem_files::read(&bundle)? {
            Some(content) => pem_files::certificates_of(&bundle, &content)?,
            None => vec![new_root(folder, domain, now)?],
        };
        for root in &roots {
            check_domain(folder, domain, root)?;
        }
        pem_files::write_public(&bundle, &pem_files::pem(None, &roots))?;
        let (issuer, signer) = open_issuer(folder, domain, &roots, now)?;
        let seen = issuer_digest(folder)?;
        let jwt = JwtSigner::open(folder, now)?;
        let state = Mutex::new(State { roots, issuer, signer, seen, since: now, jwt });
        Ok(Self { domain: domain.clone(), folder: folder.to_owned(), state })
    }

    /// Whether the folder contains an authority, or at least its root.
    pub fn exists(folder: &Path) -> bool {
        folder.join(BUNDLE_FILE).exists()
    }

    /// Returns the roots of the domain.
    pub fn bundle(&self) -> TrustBundle {
        let roots = self.state().roots.iter().map(|root| root.to_vec()).collect();
        TrustBundle::new(self.domain.clone(), roots)
    }

    /// Returns the root of the current intermediate. During a rotation, this is not the newest root.
    pub fn signing_root(&self) -> Vec<u8> {
        let state = self.state();
        let root = root_above(&state.issuer, &state.roots).or(state.roots.last());
        root.map(|root| root.to_vec()).unwrap_or_default()
    }

    /// Checks that all running programs trust the root that will sign the next intermediate.
    ///
    /// # Errors
    /// [`IdentityError::YoungRoot`] while some programs may not trust the root yet.
    pub fn check_next_root(&self, now: Duration) -> Result<(), IdentityError> {
        let state = self.state();
        check_next_root(&self.folder, (&state.roots, &state.issuer), now)
    }

    /// Returns when all running programs trust the newest root, as time since 1970. `None` if there has only ever
    /// been one root, which programs have had from the start.
    ///
    /// # Errors
    /// When the newest root is not a certificate.
    pub fn newest_root_learned_at(bundle: &TrustBundle) -> Result<Option<Duration>, IdentityError> {
        let was_rotated = bundle.roots.len() > 1 || !bundle.retired.is_empty();
        let Some(newest) = bundle.roots.last().filter(|_| was_rotated) else { return Ok(None) };
        Ok(Some(made_at(&CertificateDer::from(newest.as_slice()))? + ROOT_LEARNED))
    }

    /// Returns the certificate of the intermediate, which signs others.
    pub fn issuer(&self) -> CertificateDer<'static> {
        self.state().issuer.clone()
    }

    /// Whether the root's key is on this machine.
    pub fn root_key_present(&self) -> bool {
        self.folder.join(ROOT_FILE).exists()
    }

    /// Issues a certificate with the name `id` for the key of a signing request. Ignores all other fields of the
    /// request.
    ///
    /// # Errors
    /// [`IdentityError::InvalidRequest`] if the request is not signed by its own key.
    pub fn issue(&self, request: &[u8], id: &SpiffeId, now: Duration) -> Result<Issued, IdentityError> {
        self.issue_to((request, id), Holder::Vouched, now)
    }

    /// Issues a certificate to a program that joined with a token. The program may use it to [request its
    /// successor](renews_itself).
    ///
    /// # Errors
    /// As for [`issue`](Self::issue).
    pub fn issue_to_joined(
        &self,
        request: &[u8],
        id: &SpiffeId,
        now: Duration,
    ) -> Result<Issued, IdentityError> {
        self.issue_to((request, id), Holder::Joined, now)
    }

    fn issue_to(
        &self,
        (request, id): (&[u8], &SpiffeId),
        holder: Holder,
        now: Duration,
    ) -> Result<Issued, IdentityError> {
        let invalid = |error: rcgen::Error| IdentityError::InvalidRequest(error.to_string());
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request));
        let key = request.map_err(invalid)?.public_key;
        let state = self.state();
        Ok(Issued { chain: chain(&key, (id, holder), (&state.issuer, &state.signer), now)? })
    }

    /// Issues a certificate with host names, for servers of web clients. It is not an identity in the mesh.
    ///
    /// # Errors
    /// As for [`issue`](Self::issue), and when a certificate cannot carry a host's name.
    pub fn issue_for_hosts(
        &self,
        request: &[u8],
        hosts: &[String],
        now: Duration,
    ) -> Result<Issued, IdentityError> {
        let invalid = |error: rcgen::Error| IdentityError::InvalidRequest(error.to_string());
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request));
        let key = request.map_err(invalid)?.public_key;
        let state = self.state();
        let name = |host: &String| match host.parse() {
            Ok(ip) => Ok(SanType::IpAddress(ip)),
            Err(_) => host.as_str().try_into().map(SanType::DnsName).map_err(IdentityError::crypto),
        };
        let names = hosts.iter().map(name).collect::<Result<_, _>>()?;
        let mut params = leaf(names, now, chain_verification::validity(&state.issuer)?.1)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &state.signer).map_err(IdentityError::crypto)?;
        Ok(Issued { chain: vec![certificate.der().clone(), state.issuer.clone()] })
    }

    /// Replaces the intermediate. Certificates issued by the previous intermediate stay valid.
    ///
    /// # Errors
    /// When the root's key is missing or the disk is full; the intermediate then stays unchanged.
    pub fn rotate_issuer(&self, now: Duration) -> Result<(), IdentityError> {
        let mut state = self.state();
        let (issuer, signer) = new_issuer(&self.folder, &self.domain, &state.roots, now)?;
        state.issue_by(issuer, signer, now);
        state.seen = issuer_digest(&self.folder)?;
        Ok(())
    }

    /// Whether the intermediate's file has content that was not tried yet.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn has_other_issuer(&self) -> Result<bool, IdentityError> {
        let found = issuer_digest(&self.folder)?;
        Ok(found.is_some() && found != self.state().seen)
    }

    /// Reads the intermediate's file again and uses its content. The same content is tried only once.
    ///
    /// # Errors
    /// When the file does not contain an intermediate under one of the roots, with its key. The current intermediate
    /// stays in use.
    pub fn reread_issuer(&self, now: Duration) -> Result<Reread, IdentityError> {
        let mut state = self.state();
        let found = issuer_digest(&self.folder)?;
        if found.is_none() || found == state.seen {
            return Ok(Reread::Unchanged);
        }
        state.seen = found;
        let Some((issuer, key)) = read_issuer(&self.folder)? else { return Ok(Reread::Unchanged) };
        let signer = signer(&issuer, key)?;
        check_issuer(&self.domain, &state.roots, (&issuer, &signer), now)?;
        state.issue_by(issuer, signer, now);
        Ok(Reread::Replaced)
    }

    /// Replaces an intermediate that expires soon, once all programs trust the root that signs the next one. Renews keys
    /// for JWT-SVIDs too.
    ///
    /// # Errors
    /// As for [`rotate_issuer`](Self::rotate_issuer).
    pub fn renew_issuer_if_due(&self, now: Duration) -> Result<(), IdentityError> {
        self.renew_jwt_key_if_due(now)?;
        let state = self.state();
        let is_due = is_due(&self.folder, (&state.roots, &state.issuer), now)?;
        drop(state);
        if is_due { self.rotate_issuer(now) } else { Ok(()) }
    }

    /// Creates a new root and drops expired ones. Certificates are issued under the previous root until the next
    /// [`rotate_issuer`](Self::rotate_issuer); by then all programs must know the new root.
    ///
    /// # Errors
    /// When there are too many roots, or the disk is full.
    pub fn begin_root(&self, now: Duration) -> Result<(), IdentityError> {
        let mut state = self.state();
        let mut roots = state.roots.clone();
        roots.retain(|root| chain_verification::validity(root).is_ok_and(|(_, end)| end > now));
        if roots.len() >= MAX_ROOTS {
            return Err(IdentityError::TooManyRoots(MAX_ROOTS));
        }
        let (key, root) = make_root(&self.domain, now)?;
        roots.push(root.der().clone());
        // The key is written last: a root must be in the bundle before it signs. A root in the bundle without a key
        // does no harm.
        pem_files::write_public(&self.folder.join(BUNDLE_FILE), &pem_files::pem(None, &roots))?;
        write_pair(&self.folder.join(ROOT_FILE), &key, &root)?;
        state.roots = roots;
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change under this lock is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process that requests the next certificate of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Another process: an agent for its programs, or a control plane for itself. A stolen key is therefore useful
    /// only until its certificate expires.
    Vouched,
    /// The process itself, which joined with a token.
    Joined,
}

/// Common name in the certificates of programs that joined with a token. Every control plane of the domain can read
/// it, so no record of joined programs is needed. A program of an agent may have the same id, but must not renew its
/// certificate itself.
const JOINED: &str = "joined with a token";

/// Whether the holder of this verified certificate may request its next certificate. True only for a program that
/// joined with a token.
pub fn renews_itself(certificate: &[u8]) -> bool {
    let der = CertificateDer::from(certificate);
    let Ok(parsed) = chain_verification::parse(&der) else { return false };
    parsed.subject().iter_common_name().any(|name| name.as_str().is_ok_and(|name| name == JOINED))
}

/// Result of [`Authority::reread_issuer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// The file has the current intermediate, or content that was already tried.
    Unchanged,
    /// The file had another intermediate, which is used from now on.
    Replaced,
}

/// Issues a certificate for a key, and returns it with the issuer's certificate.
fn chain(
    key: &impl PublicKeyData,
    (id, holder): (&SpiffeId, Holder),
    (issuer, signer): (&CertificateDer<'static>, &Issuer<'static, KeyPair>),
    now: Duration,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let uri = id.to_string().try_into().map_err(IdentityError::crypto)?;
    let mut params = leaf(vec![SanType::URI(uri)], now, chain_verification::validity(issuer)?.1)?;
    if holder == Holder::Joined {
        params.distinguished_name.push(DnType::CommonName, JOINED);
    }
    let certificate = params.signed_by(key, signer).map_err(IdentityError::crypto)?;
    Ok(vec![certificate.der().clone(), issuer.clone()])
}

/// Checks that the roots verify a certificate issued by the intermediate. The intermediate's file alone does not
/// prove this.
fn check_issuer(
    domain: &TrustDomain,
    roots: &[CertificateDer<'static>],
    by: (&CertificateDer<'static>, &Issuer<'static, KeyPair>),
    now: Duration,
) -> Result<(), IdentityError> {
    let roots = roots.iter().map(|root| root.to_vec()).collect();
    let trust = Trust::new(TrustBundle::new(domain.clone(), roots))?;
    let probe = SpiffePath::Mesh(MeshRole::Control, Label::new("probe").map_err(IdentityError::crypto)?);
    let key = PrivateKey::generate()?;
    let issued = chain(key.rcgen(), (&probe.within(domain), Holder::Vouched), by, now)?;
    trust.verify(&issued, Usage::Server, now)?;
    Ok(())
}

fn issuer_digest(folder: &Path) -> Result<Option<[u8; 32]>, IdentityError> {
    Ok(pem_files::read(&folder.join(ISSUER_FILE))?.map(|content| digest(&content)))
}

/// Returns the common name of an authority's certificates in its domain.
fn common_name(domain: &TrustDomain) -> String {
    format!("spiffe://{domain}")
}

/// Returns the trust domain, which a root names as its organization.
pub(crate) fn domain_of(root: &CertificateDer<'_>) -> Result<Option<TrustDomain>, IdentityError> {
    let parsed = chain_verification::parse(root)?;
    let mut names = parsed.subject().iter_organization();
    Ok(names.next().and_then(|name| name.as_str().ok()).and_then(|name| TrustDomain::new(name).ok()))
}

fn check_domain(folder: &Path, domain: &TrustDomain, root: &CertificateDer<'_>) -> Result<(), IdentityError> {
    match domain_of(root)? {
        Some(found) if found == *domain => Ok(()),
        Some(found) => {
            Err(IdentityError::OtherDomain { path: folder.to_owned(), found, expected: domain.clone() })
        }
        None => Err(IdentityError::InvalidFile {
            path: folder.join(BUNDLE_FILE),
            problem: "names no trust domain as the organization of a root".into(),
        }),
    }
}

/// Returns the root that issued an intermediate.
fn root_above<'a>(
    issuer: &CertificateDer<'_>,
    roots: &'a [CertificateDer<'static>],
) -> Option<&'a CertificateDer<'static>> {
    roots.iter().find(|root| chain_verification::is_issued_by(issuer, root))
}

/// Returns when a root was created. The validity of a root begins a day before.
fn made_at(root: &CertificateDer<'_>) -> Result<Duration, Refused> {
    let (begin, end) = chain_verification::validity(root)?;
    let is_own = begin + DAY + ROOT_LIFETIME == end;
    Ok(if is_own { begin + DAY } else { begin })
}

/// Checks that the root in the key file belongs to the domain. An older certificate of the root suffices.
fn check_root(
    folder: &Path,
    roots: &[CertificateDer<'static>],
    root: &CertificateDer<'static>,
) -> Result<(), IdentityError> {
    if roots.iter().any(|one| chain_verification::is_same_authority(one, root)) {
        return Ok(());
    }
    Err(IdentityError::OtherRootKey { path: folder.join(ROOT_FILE), root: CertificateInfo::of(root)?.digest })
}

fn check_next_root(
    folder: &Path,
    (roots, issuer): (&[CertificateDer<'static>], &CertificateDer<'static>),
    now: Duration,
) -> Result<(), IdentityError> {
    let Some((root, _)) = root_key(folder)? else { return Ok(()) };
    check_root(folder, roots, &root)?;
    // The current intermediate's root signs again, and all programs trust that root.
    if root_above(issuer, roots) == Some(&root) {
        return Ok(());
    }
    let until = made_at(&root)? + ROOT_LEARNED;
    if now >= until {
        return Ok(());
    }
    Err(IdentityError::YoungRoot { root: CertificateInfo::of(&root)?.digest, until })
}

/// Opens the intermediate. Creates a new one if there is no file, if the intermediate is due for renewal and the
/// root's key is present, or if no root leads to it. In the last case, the old file is set aside.
fn open_issuer(
    folder: &Path,
    domain: &TrustDomain,
    roots: &[CertificateDer<'static>],
    now: Duration,
) -> Result<(CertificateDer<'static>, Issuer<'static, KeyPair>), IdentityError> {
    let Some((issuer, key)) = read_issuer(folder)? else { return new_issuer(folder, domain, roots, now) };
    if root_above(&issuer, roots).is_none() {
        let path = folder.join(ISSUER_FILE);
        let Some((root, _)) = root_key(folder)? else { return Err(IdentityError::OrphanIssuer { path }) };
        check_root(folder, roots, &root)?;
        tracing::warn!(
            "no root leads to the intermediate in ca/issuer.key: another is made, and that one is in ca/{UNUSED_ISSUER_FILE}"
        );
        pem_files::write_secret(
            &folder.join(UNUSED_ISSUER_FILE),
            &pem_files::read(&path)?.unwrap_or_default(),
        )?;
        return new_issuer(folder, domain, roots, now);
    }
    match is_due(folder, (roots, &issuer), now) {
        Ok(true) if root_key(folder)?.is_some() => return new_issuer(folder, domain, roots, now),
        Ok(_) => {}
        // The intermediate is still valid.
        Err(error @ IdentityError::OtherRootKey { .. }) => {
            tracing::error!(%error, "the intermediate of this control plane expires soon");
        }
        Err(error) => return Err(error),
    }
    let signer = signer(&issuer, key)?;
    Ok((issuer, signer))
}

/// Whether the intermediate is due for automatic renewal: it expires soon, and programs either trust the next root or
/// will do so only after the intermediate has expired.
fn is_due(
    folder: &Path,
    (roots, issuer): (&[CertificateDer<'static>], &CertificateDer<'static>),
    now: Duration,
) -> Result<bool, IdentityError> {
    let left = chain_verification::validity(issuer)?.1.saturating_sub(now);
    if left >= ISSUER_RENEWAL {
        return Ok(false);
    }
    match check_next_root(folder, (roots, issuer), now) {
        Err(IdentityError::YoungRoot { .. }) => Ok(left <= ROOT_LEARNED),
        checked => checked.map(|()| true),
    }
}

fn signer(
    certificate: &CertificateDer<'_>,
    key: PrivateKey,
) -> Result<Issuer<'static, KeyPair>, IdentityError> {
    Issuer::from_ca_cert_der(certificate, key.into_rcgen()).map_err(IdentityError::crypto)
}

type KeyAndCertificate = (CertificateDer<'static>, PrivateKey);

fn read_issuer(folder: &Path) -> Result<Option<KeyAndCertificate>, IdentityError> {
    read_pair(&folder.join(ISSUER_FILE))
}

fn root_key(folder: &Path) -> Result<Option<KeyAndCertificate>, IdentityError> {
    read_pair(&folder.join(ROOT_FILE))
}

fn read_pair(path: &Path) -> Result<Option<KeyAndCertificate>, IdentityError> {
    let Some(content) = pem_files::read(path)? else { return Ok(None) };
    let certificate = pem_files::certificates_of(path, &content)?.swap_remove(0);
    Ok(Some((certificate, pem_files::key_of(path, &content)?)))
}

fn new_root(
    folder: &Path,
    domain: &TrustDomain,
    now: Duration,
) -> Result<CertificateDer<'static>, IdentityError> {
    let (key, root) = make_root(domain, now)?;
    write_pair(&folder.join(ROOT_FILE), &key, &root)?;
    Ok(root.der().clone())
}

fn make_root(domain: &TrustDomain, now: Duration) -> Result<(PrivateKey, Certificate), IdentityError> {
    let key = PrivateKey::generate()?;
    let params = authority(domain, "root", BasicConstraints::Constrained(1), (now, now + ROOT_LIFETIME))?;
    let root = params.self_signed(key.rcgen()).map_err(IdentityError::crypto)?;
    Ok((key, root))
}

fn new_issuer(
    folder: &Path,
    domain: &TrustDomain,
    roots: &[CertificateDer<'static>],
    now: Duration,
) -> Result<(CertificateDer<'static>, Issuer<'static, KeyPair>), IdentityError> {
    let Some((root, root_key)) = root_key(folder)? else {
        return Err(IdentityError::RootKeyAbsent { path: folder.join(ROOT_FILE) });
    };
    check_root(folder, roots, &root)?;
    let end = (now + ISSUER_LIFETIME).min(chain_verification::validity(&root)?.1);
    let key = PrivateKey::generate()?;
    let params = authority(domain, "intermediate", BasicConstraints::Constrained(0), (now, end))?;
    let issuer = params.signed_by(key.rcgen(), &signer(&root, root_key)?).map_err(IdentityError::crypto)?;
    write_pair(&folder.join(ISSUER_FILE), &key, &issuer)?;
    let issuer = issuer.der().clone();
    let signer = signer(&issuer, key)?;
    Ok((issuer, signer))
}

fn write_pair(path: &Path, key: &PrivateKey, certificate: &Certificate) -> Result<(), IdentityError> {
    pem_files::write_secret(path, &pem_files::pem(Some(key), std::slice::from_ref(certificate.der())))
}

/// Returns the parameters of an authority's certificate. Its validity begins a day early, so that clock skew does not
/// delay a new domain.
fn authority(
    domain: &TrustDomain,
    what: &str,
    below: BasicConstraints,
    (begin, end): (Duration, Duration),
) -> Result<CertificateParams, IdentityError> {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, domain.as_str());
    // The time makes the name unique, because issuers are looked up by name.
    name.push(DnType::CommonName, format!("{} {what} {}", common_name(domain), begin.as_millis()));
    let mut params = CertificateParams::default();
    params.not_before = date(begin.saturating_sub(DAY))?;
    params.not_after = date(end)?;
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(below);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Returns the parameters of a process's certificate.
fn leaf(names: Vec<SanType>, now: Duration, latest: Duration) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.not_before = date(now)?;
    params.not_after = date((now + LIFETIME).min(latest))?;
    params.subject_alt_names = names;
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn date(since_1970: Duration) -> Result<OffsetDateTime, IdentityError> {
    let seconds = i64::try_from(since_1970.as_secs()).map_err(IdentityError::crypto)?;
    OffsetDateTime::from_unix_timestamp(seconds).map_err(IdentityError::crypto)
}
