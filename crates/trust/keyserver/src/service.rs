//! The gRPC service `fairmesh.keys.v1.KeyServer`.

use std::{sync::Arc, thread};

use fairmesh_identity::certificate_verify;
use fairmesh_model::{Identity, Label};
use fairmesh_wire::{
    LogLimiter, identity_of,
    keys::v1::{CheckKeyRequest, CheckKeyResponse, SignRequest, SignResponse, key_server_server::KeyServer},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time::Instant};
use tonic::{Request, Response, Status};

use crate::{
    key_store::{KeyStore, SealedKey},
    metrics::{Metrics, Refusal},
    private_key::KeyType,
};

/// Maximum size of a request, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1024;
/// Maximum length of an unknown key's name in the log.
const MAX_NAME: usize = 64;

static REFUSALS: LogLimiter = LogLimiter::new();

/// Signs TLS handshakes for callers.
#[derive(Clone, Debug)]
pub(crate) struct KeyService(Arc<State>);

#[derive(Debug)]
struct State {
    keys: Arc<KeyStore>,
    metrics: Arc<Metrics>,
    /// Permits for requests in progress.
    requests: Semaphore,
    /// Permits for slow signatures that are computed at the same time. More than one per processor would only slow
    /// them all down.
    processors: Semaphore,
}

impl KeyService {
    pub(crate) fn new(keys: KeyStore, metrics: Arc<Metrics>, max_requests: usize) -> Self {
        let processors = Semaphore::new(thread::available_parallelism().map_or(1, usize::from));
        let requests = Semaphore::new(max_requests.clamp(1, Semaphore::MAX_PERMITS));
        Self(Arc::new(State { keys: Arc::new(keys), metrics, requests, processors }))
    }

    /// Returns the key if the caller may use it. Otherwise returns the error for a nonexistent key, which reveals
    /// nothing.
    fn permitted(&self, caller: &Identity, name: &str) -> Result<(&Label, &SealedKey), Status> {
        self.0.keys.permitted(caller, name).ok_or_else(|| {
            let shown: String = name.chars().take(MAX_NAME).collect();
            let problem = format!(
                "there is no key {shown:?}, or {caller} may not use it; permit it there with --allow NAME={caller}"
            );
            self.refuse((caller, &shown), Refusal::NotPermitted, Status::permission_denied(problem))
        })
    }

    fn refuse(&self, (caller, key): (&Identity, &str), why: Refusal, status: Status) -> Status {
        self.0.metrics.refused(why);
        if let Some(suppressed) = REFUSALS.next() {
            tracing::warn!(%caller, key, suppressed, problem = status.message(), "refused to sign");
        }
        status
    }
}

#[tonic::async_trait]
impl KeyServer for KeyService {
    async fn check_key(
        &self,
        request: Request<CheckKeyRequest>,
    ) -> Result<Response<CheckKeyResponse>, Status> {
        let caller = identity_of(&request);
        self.permitted(&caller, &request.get_ref().key)?;
        Ok(Response::new(CheckKeyResponse {}))
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        let caller = identity_of(&request);
        let SignRequest { key, scheme, transcript_hash } = request.into_inner();
        let (name, key) = self.permitted(&caller, &key)?;
        let refuse = |why, status| self.refuse((&caller, name.as_str()), why, status);
        let message = certificate_verify(&transcript_hash).filter(|_| key.key_type().has_scheme(scheme));
        let message = message.ok_or_else(|| {
            let problem = format!(
                "a hash of {} bytes and the scheme {scheme:#06x} are no handshake of TLS 1.3 for this key ({:?})",
                transcript_hash.len(),
                key.key_type()
            );
            refuse(Refusal::Invalid, Status::invalid_argument(problem))
        })?;
        let overloaded = || Status::resource_exhausted("too many requests at a time; raise --max-requests");
        let _request =
            self.0.requests.try_acquire().map_err(|_| refuse(Refusal::Overloaded, overloaded()))?;
        // Fast signatures take less time than a switch to another thread would.
        let takes_long = matches!(key.key_type(), KeyType::Rsa | KeyType::EcdsaP384);
        // The semaphore is never closed.
        let processor = if takes_long { self.0.processors.acquire().await.ok() } else { None };
        let began = Instant::now();
        let signed = match processor {
            Some(_) => {
                let (keys, of) = (Arc::clone(&self.0.keys), name.clone());
                spawn_blocking(move || keys.sign(&of, scheme, &message)).await.unwrap_or_default()
            }
            None => self.0.keys.sign(name, scheme, &message),
        };
        let signature = signed
            .ok_or_else(|| refuse(Refusal::Failed, Status::internal("the signature failed; see the log")))?;
        self.0.metrics.signed(name, began.elapsed());
        Ok(Response::new(SignResponse { signature: signature.into() }))
    }
}
