//! Replaces certificates that an authority created while its machine's clock was ahead.

use std::time::Duration;

use tokio_rustls::rustls::pki_types::CertificateDer;

use super::{Authority, BUNDLE_FILE, ROOT_FILE, State, issuer_digest, make_root, new_issuer, write_pair};
use crate::{IdentityError, chain_verification, pem_files};

impl Authority {
    /// Replaces the intermediate if it is not valid yet at `now`. With `with_root`, also replaces the only root if it
    /// is not valid yet. Returns whether anything was replaced.
    ///
    /// # Errors
    /// When the root's key is missing, or the disk is full.
    pub fn replace_future(&self, now: Duration, with_root: bool) -> Result<bool, IdentityError> {
        let mut state = self.state();
        let root_is_ahead = with_root && self.is_root_ahead(&state, now);
        if !root_is_ahead && !is_ahead(&state.issuer, now) {
            return Ok(false);
        }
        if root_is_ahead {
            let (key, root) = make_root(&self.domain, now)?;
            // The key is written last, as in `begin_root`.
            pem_files::write_public(
                &self.folder.join(BUNDLE_FILE),
                &pem_files::pem(None, &[root.der().clone()]),
            )?;
            write_pair(&self.folder.join(ROOT_FILE), &key, &root)?;
            state.roots = vec![root.der().clone()];
        }
        let (issuer, signer) = new_issuer(&self.folder, &self.domain, &state.roots, now)?;
        state.issue_by(issuer, signer, now);
        state.seen = issuer_digest(&self.folder)?;
        Ok(true)
    }

    /// Whether [`replace_future`](Self::replace_future) would replace anything.
    pub fn is_ahead(&self, now: Duration, with_root: bool) -> bool {
        let state = self.state();
        is_ahead(&state.issuer, now) || (with_root && self.is_root_ahead(&state, now))
    }

    /// Whether there is only one root, which is not valid yet and can be replaced.
    fn is_root_ahead(&self, state: &State, now: Duration) -> bool {
        state.roots.len() == 1
            && state.roots.iter().all(|root| is_ahead(root, now))
            && self.root_key_present()
    }
}

/// Whether a certificate is not valid yet.
fn is_ahead(certificate: &CertificateDer<'_>, now: Duration) -> bool {
    chain_verification::validity(certificate).is_ok_and(|(begin, _)| begin > now)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::TrustDomain;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn intermediate_dated_in_future_is_replaced_and_root_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let domain = TrustDomain::new("prod").unwrap();
        let authority = Authority::open(folder.path(), &domain, NOW + 10 * DAY).unwrap();
        let begins = |authority: &Authority| {
            let root = CertificateDer::from(authority.signing_root());
            [root, authority.issuer()].map(|one| chain_verification::validity(&one).unwrap().0)
        };
        assert!(!authority.replace_future(NOW + 10 * DAY, true).unwrap());
        assert!(authority.replace_future(NOW, false).unwrap());
        let [root, issuer] = begins(&authority);
        assert!(root > NOW && issuer < NOW, "agents trust the root");
        authority.rotate_issuer(NOW + 10 * DAY).unwrap();
        assert!(authority.replace_future(NOW, true).unwrap());
        assert!(begins(&authority).iter().all(|begin| *begin < NOW));
        assert!(!authority.replace_future(NOW, true).unwrap());
        assert_eq!(authority.bundle().roots.len(), 1);
        let opened = Authority::open(folder.path(), &domain, NOW).unwrap();
        assert_eq!(opened.bundle(), authority.bundle());
    }
}
