//! Roots from which nothing hangs any more.

use std::time::Duration;

use fairmesh_model::{TrustBundle, TrustDomain};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::{Authority, BUNDLE_FILE, DAY, LIFETIME, common_name, made_at, root_above, root_key};
use crate::{CLOCK_SKEW, CertificateInfo, IdentityError, Refused, files, trust};

impl Authority {
    /// The roots of this control plane that a recorded bundle lacks: those that it signs with, and those that are newer than all
    /// recorded ones. Any other was retired, perhaps at another control plane of the store, whose file of roots is not this one.
    ///
    /// # Errors
    /// When a root, or the file of its key, cannot be read.
    pub fn missing_in(&self, recorded: &TrustBundle) -> Result<Vec<Vec<u8>>, IdentityError> {
        let state = self.state();
        let is_recorded = |root: &CertificateDer<'_>| recorded.roots.iter().any(|one| **one == **root);
        if state.roots.iter().all(is_recorded) {
            return Ok(Vec::new());
        }
        let mut newest = Duration::ZERO;
        for root in &recorded.roots {
            newest = newest.max(made_at(&CertificateDer::from(root.as_slice()))?);
        }
        let above = root_above(&state.issuer, &state.roots);
        let next = root_key(&self.folder)?.map(|(root, _)| root);
        let mut missing = Vec::new();
        for root in state.roots.iter().filter(|root| !is_recorded(root)) {
            if above == Some(root) || next.as_ref() == Some(root) || made_at(root)? > newest {
                missing.push(root.to_vec());
            }
        }
        Ok(missing)
    }

    /// Whether this control plane signs neither with a root nor beneath it, and another one of the bundle is newer.
    ///
    /// # Errors
    /// [`IdentityError::RootInUse`] if it does.
    pub fn check_unused(&self, bundle: &TrustBundle, root: &[u8]) -> Result<(), IdentityError> {
        let in_use = |why| Err(IdentityError::RootInUse { root: CertificateInfo::of(root)?.digest, why });
        if bundle.roots.last().is_some_and(|newest| newest == root) {
            return in_use("is the newest one; begin another with `fairmesh identity rotate --root`");
        }
        let state = self.state();
        if root_above(&state.issuer, &state.roots).is_some_and(|above| **above == *root) {
            return in_use(
                "is that of the intermediate of this control plane; replace that with `fairmesh identity rotate`",
            );
        }
        if root_key(&self.folder)?.is_some_and(|(own, _)| *own == *root) {
            return in_use(
                "is that in ca/root.key, which signs the next intermediate; put the newest one there",
            );
        }
        Ok(())
    }

    /// Whether all certificates have expired that this control plane can have issued by another intermediate than that of now.
    ///
    /// # Errors
    /// [`IdentityError::RecentRoot`] as long as they may not have.
    pub fn check_expired_beneath(&self, root: &[u8], now: Duration) -> Result<(), IdentityError> {
        let state = self.state();
        let since = state.put_at.map_or_else(|| made_since(&state.issuer, &self.domain), Ok)?;
        let until = since + LIFETIME + CLOCK_SKEW;
        let root_ended = trust::validity(&CertificateDer::from(root))?.1 + CLOCK_SKEW < now;
        if root_ended || now >= until {
            return Ok(());
        }
        Err(IdentityError::RecentRoot { root: CertificateInfo::of(root)?.digest, until })
    }

    /// Drops a root from the file of roots. It has to be [unused](Self::check_unused).
    ///
    /// # Errors
    /// When the file cannot be written; then nothing has changed.
    pub fn forget_root(&self, root: &[u8]) -> Result<(), IdentityError> {
        let mut state = self.state();
        let mut roots = state.roots.clone();
        roots.retain(|one| **one != *root);
        if roots.is_empty() || roots.len() == state.roots.len() {
            return Ok(());
        }
        files::write_public(&self.folder.join(BUNDLE_FILE), &files::pem(None, &roots))?;
        state.roots = roots;
        Ok(())
    }
}

/// When an intermediate was made. One of an authority of this kind is valid from a day before.
fn made_since(issuer: &CertificateDer<'_>, domain: &TrustDomain) -> Result<Duration, Refused> {
    let (begin, _) = trust::validity(issuer)?;
    let own = format!("{} intermediate ", common_name(domain));
    let parsed = trust::parse(issuer)?;
    let mut names = parsed.subject().iter_common_name();
    let is_own = names.any(|name| name.as_str().is_ok_and(|name| name.starts_with(&own)));
    Ok(if is_own { begin + DAY } else { begin })
}
