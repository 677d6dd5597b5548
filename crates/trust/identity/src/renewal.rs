//! Keeps an identity fresh: a new key and certificate after 8 of its 24 hours, so that an outage of those who issue
//! costs no call for 15 hours.

use std::{future::Future, sync::Arc, time::Duration};

use fairmesh_model::TrustBundle;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use crate::{CertificateInfo, Credentials, IdentityError, PrivateKey, Workload, token};

/// Age at which a certificate is renewed, at the latest; up to a tenth earlier, so that those who began together do not
/// all come at once.
pub const RENEWAL: Duration = Duration::from_secs(8 * 3600);
/// From this much time left on, failed renewals are errors in the log.
const ALARM: Duration = Duration::from_secs(12 * 3600);
/// The wall clock may be set while a renewal waits, so it is read this often.
const CLOCK_CHECK: Duration = Duration::from_secs(60);
/// Pauses between failed attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// What a source of certificates responds with.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The certificate, followed by that of its issuer.
    pub chain: Vec<CertificateDer<'static>>,
    /// The roots of the trust domain.
    pub bundle: TrustBundle,
}

/// Issues certificates: an agent for a program, a control plane for an agent.
pub trait Source: Send + Sync {
    /// A certificate for the key of a signing request. The error is for people.
    fn certify(&self, request: Vec<u8>) -> impl Future<Output = Result<Certified, String>> + Send;

    /// Whether the next certificate is due at once, since it is not known that the present one is still accepted.
    fn has_to_try(&self) -> bool {
        false
    }

    /// Keeps a certificate beyond the life of the process.
    ///
    /// # Errors
    /// When that fails, which is logged.
    fn save(&self, _: &Credentials) -> Result<(), IdentityError> {
        Ok(())
    }
}

/// Gets a certificate for a new key from `certify`, and installs it.
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
    tracing::info!(%id, serial, expires = expires.as_secs(), "a certificate was issued");
    Ok(())
}

/// Renews until `stop`, beginning at once if there is no certificate yet.
pub async fn keep_fresh(workload: Arc<Workload>, source: impl Source, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        let mut backoff = BACKOFF.0;
        loop {
            wait_until_due(&workload, &source).await;
            let renewed =
                install(&workload, |request| source.certify(request), |made| source.save(made)).await;
            let renewed = match renewed {
                // It was issued by a clock that is behind the clock by which those before were revoked.
                Ok(()) if workload.is_revoked() => Err("the new certificate is revoked too".to_owned()),
                renewed => renewed,
            };
            match renewed {
                Ok(()) => backoff = BACKOFF.0,
                Err(error) => {
                    report(&workload, &error);
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
        // Another certificate of an identity that is revoked as a whole is refused, and accepted again once it is restored.
        if due.is_zero() || workload.is_revoked() || source.has_to_try() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(due.min(CLOCK_CHECK)) => {}
            // The sender lives as long as the borrow of the workload.
            _ = changes.changed() => {}
        }
    }
}

/// When a certificate is renewed.
pub(crate) fn due_at(credentials: &Credentials) -> Duration {
    let (begin, end) = credentials.validity();
    let age = RENEWAL.min((end - begin) / 3);
    begin + age - spread(&credentials.chain[0], age / 10)
}

/// A part of `range` that differs by certificate.
fn spread(certificate: &[u8], range: Duration) -> Duration {
    let digest = token::digest(certificate);
    range * u32::from(u16::from_be_bytes([digest[0], digest[1]])) / u32::from(u16::MAX)
}

fn jitter(workload: &Workload, range: Duration) -> Duration {
    match workload.credentials() {
        Some(credentials) => spread(&credentials.chain[0], range),
        // Addresses of processes differ.
        None => spread(&std::process::id().to_be_bytes(), range),
    }
}

pub(crate) fn report(workload: &Workload, error: &str) {
    let Some(credentials) = workload.credentials() else {
        tracing::warn!(error, "there is no certificate yet; trying again");
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
