//! Checks whether a control plane that waits for its store in etcd could take over: whether it has the root of the trust
//! domain that the store belongs to.

use std::{convert::Infallible, time::Duration};

use fairmesh_model::{Record, RecordKey};
use fairmesh_store::{EtcdConfig, read_home_record};
use fairmesh_wire::record_encoding;

use crate::{ControlConfig, ControlError, identity::CertificateIssuer};

/// Interval of the checks while this control plane waits.
const INTERVAL: Duration = Duration::from_secs(60);

/// Opens the authority as a start does. If `root.key` is there, this creates the intermediate, so that the key can be removed
/// before this control plane takes over.
///
/// # Errors
/// Those that would end this control plane when it takes over.
pub(crate) async fn check(config: &ControlConfig, etcd: &EtcdConfig) -> Result<(), ControlError> {
    let key = RecordKey::TrustBundle;
    let Some(value) = read_home_record(etcd, &key.to_string()).await? else { return Ok(()) };
    // A start reports a record of a newer release.
    let Ok(Record::TrustBundle(recorded)) = record_encoding::decode(&key, &value) else { return Ok(()) };
    let told = config.trust_domain.told(false, Some(&recorded.domain));
    if CertificateIssuer::open(config, told.as_ref(), Some(&recorded))?.is_none() {
        tracing::warn!(
            domain = %recorded.domain,
            "the store belongs to a trust domain, and this control plane has no ca folder for it: while it is active, no process \
             connects over TCP or gets a certificate; copy ca/bundle.pem and ca/root.key from a control plane of the store, and \
             give --trust-domain"
        );
    }
    Ok(())
}

/// Warns each minute while this control plane could not take over. Never returns.
pub(crate) async fn watch(config: &ControlConfig, etcd: &EtcdConfig) -> Infallible {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if let Err(problem) = check(config, etcd).await {
            tracing::warn!(%problem, "this control plane stands by, and could not take over");
        }
    }
}
