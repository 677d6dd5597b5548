//! Trusts the roots in an identity's folder, which are read again when their file changes.

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use crate::{Credentials, IdentityError, Workload};

/// Interval at which the file is compared with its last content.
const INTERVAL: Duration = Duration::from_secs(5);

/// Follows `bundle.pem` in an identity's [folder](Credentials::save). When the file changes, new connections trust
/// its roots. An operator can thus add or remove a root before a control plane reports it. The next renewal restores
/// the recorded roots. Never returns.
pub async fn follow_bundle(workload: &Workload, folder: &Path) {
    let mut seen = Credentials::read_bundle(folder).ok().flatten();
    loop {
        sleep(INTERVAL).await;
        let read = Credentials::read_bundle(folder);
        if read.as_ref().is_ok_and(|found| *found == seen) {
            continue;
        }
        match read.and_then(|found| use_bundle(workload, folder, (found, &mut seen))) {
            Ok(true) => {
                tracing::info!(folder = %folder.display(), "the roots in bundle.pem are trusted from now on")
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "bundle.pem is not used; the roots before stay trusted");
            }
        }
    }
}

/// Trusts the roots in the file if they changed. Unchanged content is not used or reported again.
fn use_bundle(
    workload: &Workload,
    folder: &Path,
    (found, seen): (Option<Vec<u8>>, &mut Option<Vec<u8>>),
) -> Result<bool, IdentityError> {
    seen.clone_from(&found);
    match found {
        // The process has not joined yet, or the file is being replaced.
        None => Ok(false),
        Some(content) => workload.trust_roots(&Credentials::roots_in(folder, &content)?),
    }
}
