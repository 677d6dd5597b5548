//! Renews an identity: after 8 of its 24 hours, a certificate is replaced by one for a new key. Calls thus survive an
//! outage of the issuer of 15 hours.

use std::{future::Future, sync::Arc, time::Duration};

use fairmesh_model::TrustBundle;
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use crate::{CertificateInfo, Credentials, IdentityError, PrivateKey, Workload, error::rfc3339, join_token};

/// Maximum age at which a certificate is renewed. Renewals are spread over the tenth before this age, so that
/// processes started together do not renew together.
pub const RENEWAL: Duration = Duration::from_secs(8 * 3600);
/// Remaining validity below which failed renewals are logged as errors.
const ALARM: Duration = Duration::from_secs(12 * 3600);
/// Interval at which a waiting renewal reads the wall clock, because the clock may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(60);
/// Time without a first certificate before this is a warning, since the processes of a machine start in any order.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Pauses between failed attempts: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A certificate and the roots, as issued by a source.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The certificate and its issuer's certificate.
    pub chain: Vec<CertificateDer<'static>>,
    /// The roots of the trust domain.
    pub bundle: TrustBundle,
}

/// Issues certificates: an agent to a program, or a control plane to an agent.
pub trait Source: Send + Sync {
    /// Issues a certificate for the key of a signing request. The error is a message for people.
    fn certify(&self, request: Vec<u8>) -> impl Future<Output = Result<Certified, String>> + Send;

    /// Whether to renew at once, because peers may no longer accept the current certificate.
    fn has_to_try(&self) -> bool {
        false
    }

    /// Saves a certificate for the next start of the process.
    ///
    /// # Errors
    /// When saving fails; the caller logs the error.
    fn save(&self, _: &Credentials) -> Result<(), IdentityError> {
        Ok(())
    }
}

/// Requests a certificate for a new key with `certify`, and installs it.
pub(crate) async fn renew_from<E: From<String>>(
    workload: &Workload,
    certify: impl AsyncFnOnce(Vec<u8>) -> Result<Certified, E>,
) -> Result<(), E> {
    install(workload, certify, |_| Ok(())).await
}

async fn install<E: From<String>>(
    workload: &Workload,
    certify: impl AsyncFnOnce(Vec<u8>) -> Result<Certified, E>,
    save: impl FnOnce(&Credentials) -> Result<(), IdentityError>,
) -> Result<(), E> {
    let failed = |error: IdentityError| E::from(error.to_string());
    let key = PrivateKey::generate().map_err(failed)?;
    let Certified { chain, bundle } = certify(key.signing_request().map_err(failed)?).await?;
    let credentials = Credentials::new(key, chain, bundle, workload.now()).map_err(failed)?;
    if let Err(error) = save(&credentials) {
        tracing::error!(%error, "the new certificate cannot be kept on disk");
    }
    let (id, (_, expires)) = (credentials.id().clone(), credentials.validity());
    let serial = CertificateInfo::of(&credentials.chain[0]).map(|info| info.serial).unwrap_or_default();
    workload.install(credentials).map_err(failed)?;
    tracing::info!(%id, serial, expires = rfc3339(expires), "a certificate was issued");
    Ok(())
}

/// Renews the certificate until `stop`. Starts at once if there is no certificate yet.
pub async fn keep_fresh(workload: Arc<Workload>, source: impl Source, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        let (mut backoff, began) = (BACKOFF.0, Instant::now());
        loop {
            wait_until_due(&workload, &source).await;
            let renewed =
                install(&workload, |request| source.certify(request), |made| source.save(made)).await;
            let renewed = match renewed {
                // The issuer's clock is behind the clock of the process that made the revocation.
                Ok(()) if workload.is_revoked() => Err("the new certificate is revoked too".to_owned()),
                renewed => renewed,
            };
            match renewed {
                Ok(()) => backoff = BACKOFF.0,
                Err(error) => {
                    report(&workload, &error, began.elapsed());
                    tokio::time::sleep(backoff + jitter(&workload, backoff / 2)).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
        }
    })
    .await;
}

async fn wait_until_due(workload: &Workload, source: &impl Source) {
    while let Some(credentials) = workload.credentials() {
        let mut changes = workload.revocation_changes();
        let due = due_at(&credentials).saturating_sub(workload.now());
        // If a whole identity is revoked, its new certificates are refused too, until the identity is restored.
        if due.is_zero() || workload.is_revoked() || source.has_to_try() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(due.min(CLOCK_CHECK)) => {}
            // The sender lives as long as the workload is borrowed.
            _ = changes.changed() => {}
        }
    }
}

/// Returns when a certificate is due for renewal.
pub(crate) fn due_at(credentials: &Credentials) -> Duration {
    let (begin, end) = credentials.validity();
    let age = RENEWAL.min((end - begin) / 3);
    begin + age - spread(&credentials.chain[0], age / 10)
}

/// Derives a fraction of `range` from the certificate.
fn spread(certificate: &[u8], range: Duration) -> Duration {
    let digest = join_token::digest(certificate);
    range * u32::from(u16::from_be_bytes([digest[0], digest[1]])) / u32::from(u16::MAX)
}

fn jitter(workload: &Workload, range: Duration) -> Duration {
    match workload.credentials() {
        Some(credentials) => spread(&credentials.chain[0], range),
        // Process ids differ between the processes of a machine.
        None => spread(&std::process::id().to_be_bytes(), range),
    }
}

/// Logs a failed renewal. `waited` is the time since the first attempt.
pub(crate) fn report(workload: &Workload, error: &str, waited: Duration) {
    let Some(credentials) = workload.credentials() else {
        match waited < START_PATIENCE {
            true => tracing::info!(error, "there is no certificate yet; trying again"),
            false => tracing::warn!(error, "there is no certificate yet; trying again"),
        }
        return;
    };
    let left = credentials.validity().1.saturating_sub(workload.now());
    if left < ALARM {
        tracing::error!(
            error,
            left_s = left.as_secs(),
            "the certificate cannot be renewed, and expires soon"
        );
    } else {
        tracing::warn!(error, left_s = left.as_secs(), "the certificate cannot be renewed; trying again");
    }
}
