//! The certificate of an agent on this machine.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_console::default_paths::state_folders;
use fairmesh_identity::{Clock as _, Credentials, IdentityError, SystemClock};
use fairmesh_model::TrustBundle;

use crate::findings_report::{Level, Report};

/// The folder of an identity within the state directory of its process.
const IDENTITY_FOLDER: &str = "identity";
/// With a shorter remaining lifetime, renewals have failed for hours: they begin 16 h before the end.
const RENEWED_BEFORE: Duration = Duration::from_secs(12 * 3600);

/// Remedy for an agent whose identity is unusable.
const JOIN_AGAIN: &str = "have the agent join again: beside its control plane it does so when it starts, elsewhere it needs a token of \
                          'fairmesh identity token' too";

/// Checks the identities in the default folders of processes and the given ones against the roots of the trust domain.
pub(super) fn check(given: &[PathBuf], roots: Option<&TrustBundle>, report: &mut Report) {
    for folder in BTreeSet::from_iter(state_folders(given)) {
        identity(&folder.join(IDENTITY_FOLDER), roots, report);
    }
}

fn identity(folder: &Path, roots: Option<&TrustBundle>, report: &mut Report) {
    let now = SystemClock.now();
    let shown = folder.display();
    let (message, remedy) = match Credentials::load(folder, now) {
        Ok(None) => return,
        Ok(Some(own)) if let Some(problem) = refused(&own, roots, now) => {
            let message = format!("the certificate of {} is refused: {problem}", own.id());
            return report.add("agent.certificate", Level::Error, message, JOIN_AGAIN);
        }
        Ok(Some(own)) => match own.validity().1.saturating_sub(now) {
            left if left >= RENEWED_BEFORE => {
                let message =
                    format!("the certificate of {} is valid for {} h", own.id(), left.as_secs() / 3600);
                return report.ok("agent.certificate", message);
            }
            left => (
                format!(
                    "the certificate of {} ends in {} h, and is not renewed",
                    own.id(),
                    left.as_secs() / 3600
                ),
                "start its agent, and check with 'fairmesh check' that it reaches a control plane".to_owned(),
            ),
        },
        // The check of keys reports the unreadable folder.
        Err(IdentityError::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => return,
        Err(error) => (format!("the identity in {shown} cannot be used: {error}"), JOIN_AGAIN.to_owned()),
    };
    report.add("agent.certificate", Level::Warning, message, remedy);
}

/// Reason why processes of the mesh refuse a certificate, if they do.
fn refused(own: &Credentials, roots: Option<&TrustBundle>, now: Duration) -> Option<String> {
    let roots = roots.filter(|roots| roots.domain == own.id().domain)?;
    own.check_by(roots, now).err().map(|error| error.to_string())
}
