//! Roots from which nothing hangs any more.

use std::{path::Path, time::Duration};

use fairmesh_model::{MAX_ROOTS, TrustBundle};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::{Authority, BUNDLE_FILE, LIFETIME, check_issuer, made_at, root_above, root_key};
use crate::{CLOCK_SKEW, CertificateInfo, IdentityError, files, token, trust};

impl Authority {
    /// Brings the file of roots in `folder` up to date before it is opened, since another control plane of the store may have begun
    /// roots and retired some: adds those that are recorded, and drops those that were retired. False if it has none of either,
    /// so that it is of another domain; then nothing has changed.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn adopt(folder: &Path, recorded: &TrustBundle) -> Result<bool, IdentityError> {
        let path = folder.join(BUNDLE_FILE);
        let Some(content) = files::read(&path)? else { return Ok(false) };
        let before = files::certificates_of(&path, &content)?;
        let is_retired = |root: &CertificateDer<'_>| recorded.retired.contains(&token::digest(root));
        let is_recorded = |root: &CertificateDer<'_>| recorded.roots.iter().any(|one| **one == **root);
        if !before.iter().any(|root| is_recorded(root) || is_retired(root)) {
            return Ok(false);
        }
        let mut roots: Vec<_> = before.iter().filter(|root| !is_retired(root)).cloned().collect();
        let missing = recorded.roots.iter().map(|root| CertificateDer::from(root.clone()));
        roots.extend(missing.filter(|root| !before.contains(root)));
        if roots != before {
            files::write_public(&path, &files::pem(None, &roots))?;
            tracing::info!("ca/{BUNDLE_FILE} has the recorded roots from now on, and none that was retired");
        }
        Ok(true)
    }

    /// The recorded bundle with the roots of this control plane that it lacks and that were not retired, in the order of time; of
    /// too many, the newest, and the one that signs.
    #[must_use]
    pub fn complete(&self, recorded: Option<TrustBundle>) -> TrustBundle {
        let mut bundle = recorded.unwrap_or_else(|| TrustBundle::new(self.domain.clone(), Vec::new()));
        let state = self.state();
        for root in &state.roots {
            let is_retired = bundle.retired.contains(&token::digest(root));
            if !is_retired && !bundle.roots.iter().any(|one| **one == **root) {
                bundle.roots.push(root.to_vec());
            }
        }
        // All of them are certificates; those of one time stay as they are.
        bundle.roots.sort_by_key(|root| made_at(&CertificateDer::from(root.as_slice())).unwrap_or_default());
        if bundle.roots.len() > MAX_ROOTS {
            // Only then, since signatures are verified to find it, and each request of a certificate needs the bundle.
            let above = root_above(&state.issuer, &state.roots);
            while bundle.roots.len() > MAX_ROOTS {
                let is_above = above.is_some_and(|above| **above == *bundle.roots[0]);
                bundle.roots.remove(usize::from(is_above));
            }
        }
        bundle
    }

    /// Whether this control plane signs neither with a root nor beneath it.
    ///
    /// # Errors
    /// [`IdentityError::RootInUse`] if it does.
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

    /// Whether all certificates beneath a root have expired that were issued before this control plane began to issue beneath the
    /// root of now: by itself, or by another control plane that was active before.
    ///
    /// # Errors
    /// [`IdentityError::RecentRoot`] as long as they may not have.
    pub fn check_expired_beneath(&self, root: &[u8], now: Duration) -> Result<(), IdentityError> {
        let until = self.state().since + LIFETIME + CLOCK_SKEW;
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

fn in_use(root: &[u8], why: &'static str) -> Result<(), IdentityError> {
    Err(IdentityError::RootInUse { root: CertificateInfo::of(root)?.digest, why })
}
