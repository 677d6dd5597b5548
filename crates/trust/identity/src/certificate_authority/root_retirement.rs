//! Retirement of unused roots.

use std::{path::Path, time::Duration};

use fairmesh_model::{MAX_ROOTS, TrustBundle};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::{Authority, BUNDLE_FILE, LIFETIME, check_issuer, made_at, root_above, root_key};
use crate::{CLOCK_SKEW, CertificateInfo, IdentityError, chain_verification, join_token, pem_files};

impl Authority {
    /// Updates the file of roots in `folder` before the authority is opened, because another control plane of the
    /// store may have begun or retired roots. Adds recorded roots and drops retired ones. Returns false and changes
    /// nothing if none of the folder's roots is recorded or retired, because the folder then belongs to another
    /// domain.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn adopt(folder: &Path, recorded: &TrustBundle) -> Result<bool, IdentityError> {
        let path = folder.join(BUNDLE_FILE);
        let Some(content) = pem_files::read(&path)? else { return Ok(false) };
        let before = pem_files::certificates_of(&path, &content)?;
        let is_retired = |root: &CertificateDer<'_>| recorded.retired.contains(&join_token::digest(root));
        let is_recorded = |root: &CertificateDer<'_>| recorded.roots.iter().any(|one| **one == **root);
        if !before.iter().any(|root| is_recorded(root) || is_retired(root)) {
            return Ok(false);
        }
        let mut roots: Vec<_> = before.iter().filter(|root| !is_retired(root)).cloned().collect();
        let missing = recorded.roots.iter().map(|root| CertificateDer::from(root.clone()));
        roots.extend(missing.filter(|root| !before.contains(root)));
        if roots != before {
            pem_files::write_public(&path, &pem_files::pem(None, &roots))?;
            tracing::info!("ca/{BUNDLE_FILE} has the recorded roots from now on, and none that was retired");
        }
        Ok(true)
    }

    /// Returns the recorded bundle plus those roots of this control plane that are neither recorded nor retired,
    /// oldest first. If there are too many roots, the newest roots and the signing root are kept. The keys for JWT-SVIDs
    /// are those recorded and those of this control plane, without expired ones.
    #[must_use]
    pub fn complete(&self, recorded: Option<TrustBundle>, now: Duration) -> TrustBundle {
        let mut bundle = recorded.unwrap_or_else(|| TrustBundle::new(self.domain.clone(), Vec::new()));
        let state = self.state();
        state.jwt.complete(&mut bundle.jwt_keys, now);
        for root in &state.roots {
            let is_retired = bundle.retired.contains(&join_token::digest(root));
            if !is_retired && !bundle.roots.iter().any(|one| **one == **root) {
                bundle.roots.push(root.to_vec());
            }
        }
        // All roots can be parsed. The sort is stable for roots of the same time.
        bundle.roots.sort_by_key(|root| made_at(&CertificateDer::from(root.as_slice())).unwrap_or_default());
        if bundle.roots.len() > MAX_ROOTS {
            // Finding the signing root means verifying signatures, which is too slow for each request, so it is done
            // only if there are too many roots.
            let above = root_above(&state.issuer, &state.roots);
            while bundle.roots.len() > MAX_ROOTS {
                let is_above = above.is_some_and(|above| **above == *bundle.roots[0]);
                bundle.roots.remove(usize::from(is_above));
            }
        }
        bundle
    }

    /// Checks that this control plane signs neither with a root nor with an intermediate under it.
    ///
    /// # Errors
    /// [`IdentityError::RootInUse`] if the root is in use.
    pub fn check_unused(
        &self,
        bundle: &TrustBundle,
        root: &[u8],
        now: Duration,
    ) -> Result<(), IdentityError> {
        let others = bundle.roots.iter().filter(|one| *one != root);
        let others: Vec<_> = others.map(|one| CertificateDer::from(one.as_slice()).into_owned()).collect();
        let state = self.state();
        if check_issuer(&self.domain, &others, (&state.issuer, &state.signer), now).is_err() {
            return in_use(
                root,
                "is that of the intermediate of this control plane; sign beneath a newer one first (`fairmesh identity rotate --root`, then \
                 `rotate`)",
            );
        }
        if root_key(&self.folder)?.is_some_and(|(own, _)| *own == *root) {
            return in_use(
                root,
                "is that in ca/root.key, which signs the next intermediate; put a newer one there",
            );
        }
        Ok(())
    }

    /// Checks that all certificates under a root have expired, no matter whether this control plane issued them or
    /// one that was active before.
    ///
    /// # Errors
    /// [`IdentityError::RecentRoot`] while some certificates may still be valid.
    pub fn check_expired_beneath(&self, root: &[u8], now: Duration) -> Result<(), IdentityError> {
        let until = self.state().since + LIFETIME + CLOCK_SKEW;
        let root_ended = chain_verification::validity(&CertificateDer::from(root))?.1 + CLOCK_SKEW < now;
        if root_ended || now >= until {
            return Ok(());
        }
        Err(IdentityError::RecentRoot { root: CertificateInfo::of(root)?.digest, until })
    }

    /// Drops an [unused](Self::check_unused) root from the file of roots.
    ///
    /// # Errors
    /// When the file cannot be written; then nothing is changed.
    pub fn forget_root(&self, root: &[u8]) -> Result<(), IdentityError> {
        let mut state = self.state();
        let mut roots = state.roots.clone();
        roots.retain(|one| **one != *root);
        if roots.is_empty() || roots.len() == state.roots.len() {
            return Ok(());
        }
        pem_files::write_public(&self.folder.join(BUNDLE_FILE), &pem_files::pem(None, &roots))?;
        state.roots = roots;
        Ok(())
    }
}

fn in_use(root: &[u8], why: &'static str) -> Result<(), IdentityError> {
    Err(IdentityError::RootInUse { root: CertificateInfo::of(root)?.digest, why })
}
