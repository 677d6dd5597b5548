use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::Label;
use fairmesh_wire::{
    keys::v1::{CheckKeyRequest, SignRequest, key_server_client::KeyServerClient},
    transport::{Address, CONNECT_TIMEOUT, Channel, Transport, connect_channel_lazy},
};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

/// Interval of probes of the key server. A probe keeps the connection open or reopens it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of a response, in bytes. An RSA signature with 8192 bits takes 1 KB.
const MAX_RESPONSE: usize = 4096;

/// Configuration of a private key on a key server.
#[derive(Clone, Debug)]
pub struct RemoteKeyConfig {
    /// Name of the key on the key server.
    pub name: Label,
    /// Address of the key server.
    pub server: Address,
    /// Time limit for a signature.
    pub deadline: Duration,
}

/// A private key on a key server. All requests use one connection, which is opened in advance.
#[derive(Debug)]
pub struct RemoteKey {
    config: RemoteKeyConfig,
    client: KeyServerClient<Channel>,
    runtime: Handle,
    state: Arc<KeyServerState>,
    _checking: AbortOnDropHandle<()>,
}

/// Health of the key server.
#[derive(Debug)]
struct KeyServerState {
    name: String,
    /// Error of the last attempt; `None` if it succeeded.
    problem: Mutex<Option<String>>,
}

/// Reason why a key server failed to sign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteKeyError {
    /// The key server did not respond in time.
    #[error("no response within {0:?}")]
    Late(Duration),
    /// The key server refused, or the connection failed.
    #[error("{0}")]
    Refused(String),
    /// The signature does not match the certificate's key.
    #[error("its signature does not fit the certificate; give the name of the certificate's key")]
    WrongSignature,
    /// The handshake is not TLS 1.3.
    #[error("it signs handshakes of TLS 1.3 only")]
    OtherMessage,
}

impl RemoteKey {
    /// Connects in the background in the current runtime. Signing must not block that runtime's threads.
    pub(super) fn connect(config: RemoteKeyConfig, transport: &Transport) -> Self {
        let channel = connect_channel_lazy(&transport.clone().to_key_server(), &config.server);
        let client = KeyServerClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
        let name = format!("{}@{}", config.name, config.server);
        let state = KeyServerState { name, problem: Mutex::new(Some("it has not responded yet".to_owned())) };
        let state = Arc::new(state);
        let checking = keep_checking(client.clone(), config.clone(), Arc::clone(&state));
        Self {
            config,
            client,
            runtime: Handle::current(),
            state,
            _checking: AbortOnDropHandle::new(tokio::spawn(checking)),
        }
    }

    /// Returns the names of key and server, as `NAME@ADDRESS`.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Returns the time limit for a signature.
    pub fn deadline(&self) -> Duration {
        self.config.deadline
    }

    /// Returns the current problem of the key server; `None` if it signs.
    pub fn problem(&self) -> Option<String> {
        self.state.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Signs on the key server and blocks the thread, at most until the deadline. Panics on threads that the runtime
    /// does not allow to block. A separate task per call was rejected: it cost a tenth of the handshakes per second.
    pub(super) fn sign(&self, scheme: u16, transcript_hash: &[u8]) -> Result<Vec<u8>, RemoteKeyError> {
        let request = SignRequest {
            key: self.config.name.to_string(),
            scheme: scheme.into(),
            transcript_hash: transcript_hash.to_vec().into(),
        };
        let mut client = self.client.clone();
        let call = async { timeout(self.config.deadline, client.sign(request)).await };
        let signed = match self.runtime.block_on(call) {
            Ok(Ok(response)) => Ok(response.into_inner().signature.to_vec()),
            Ok(Err(status)) => Err(RemoteKeyError::from(&status)),
            Err(_) => Err(RemoteKeyError::Late(self.config.deadline)),
        };
        signed.map_err(|error| self.failed(error))
    }

    /// Records a failure, so that other handshakes do not wait for the key server until the next probe succeeds.
    pub(super) fn failed(&self, error: RemoteKeyError) -> RemoteKeyError {
        self.state.note(Some(error.to_string()));
        error
    }
}

async fn keep_checking(
    mut client: KeyServerClient<Channel>,
    config: RemoteKeyConfig,
    state: Arc<KeyServerState>,
) {
    let patience = CONNECT_TIMEOUT + config.deadline;
    loop {
        let request = CheckKeyRequest { key: config.name.to_string() };
        let problem = match timeout(patience, client.check_key(request)).await {
            Ok(Ok(_)) => None,
            Ok(Err(status)) => Some(RemoteKeyError::from(&status).to_string()),
            Err(_) => Some(RemoteKeyError::Late(patience).to_string()),
        };
        state.note(problem);
        sleep(CHECK_INTERVAL).await;
    }
}

impl KeyServerState {
    /// Records the current problem, and logs it if it changed.
    fn note(&self, problem: Option<String>) {
        let mut noted = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*noted, &problem) {
            (Some(_), None) => tracing::info!(key = self.name, "the key server signs"),
            (before, Some(problem)) if before.as_ref() != Some(problem) => {
                tracing::warn!(key = self.name, problem, "the key server does not sign");
            }
            _ => {}
        }
        *noted = problem;
    }
}

impl From<&Status> for RemoteKeyError {
    fn from(status: &Status) -> Self {
        Self::Refused(status.message().to_owned())
    }
}
