//! The roots that a process keeps on disk, read again when they change.

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use crate::{Credentials, IdentityError, Workload};

/// How often the file is compared with what was read.
const INTERVAL: Duration = Duration::from_secs(5);

/// Trusts the roots in `bundle.pem` of a folder in which an identity is [kept](Credentials::save) when that file changes, for
/// connections from then on: for a root that has to be known before a control plane can tell it, or be known no more. The next
/// renewal brings the roots of the records again. Never returns.
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

/// Trusts these roots, if they are others. Each content is used or reported once.
fn use_bundle(
    workload: &Workload,
    folder: &Path,
    (found, seen): (Option<Vec<u8>>, &mut Option<Vec<u8>>),
) -> Result<bool, IdentityError> {
    seen.clone_from(&found);
    match found {
        // Before the process has joined, or while the file is replaced by hand.
        None => Ok(false),
        Some(content) => workload.trust_roots(&Credentials::roots_in(folder, &content)?),
    }
}
