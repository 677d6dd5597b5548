//! The identity of a program, from the agent of its machine.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{SpiffePath, TrustBundle};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::{Address, ExpectedPeer, Handshake, TlsIdentity, Transport},
    v1::IssueWorkloadRequest,
};
use tokio::{net::TcpStream, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::Code;

use crate::{
    Workload,
    renewal::{self, Certified, Source},
};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Issues by the agent at an address.
#[derive(Debug)]
struct AgentSource {
    agent: Address,
    /// Empty: an operator, as the agent names it.
    path: String,
    software: String,
}

/// Why an agent issued nothing.
enum NotIssued {
    /// The mesh has no trust domain.
    NoDomain,
    /// There is no such agent, or it knows no identities.
    NoAgent(String),
    /// It will, or refused to.
    Failed(String),
}

/// The identity of this program. It is renewed until this is dropped.
#[derive(Clone, Debug)]
pub struct ProgramIdentity {
    workload: Arc<Workload>,
    _renewal: Arc<AbortOnDropHandle<()>>,
}

impl ProgramIdentity {
    /// Asks the agent for an identity, of a service or otherwise of the user, for at most `patience`. `None` if the mesh
    /// has no trust domain, or there is no agent at a Unix socket. If the agent is a member of a trust domain and cannot
    /// issue a certificate now, it comes later: until then connections fail.
    pub async fn from_agent(
        agent: &Address,
        path: Option<SpiffePath>,
        software: &str,
        patience: Duration,
    ) -> Option<Self> {
        // Only there the agent knows the user.
        let Address::Unix(_) = agent else { return None };
        let path = path.map(|path| path.to_string()).unwrap_or_default();
        let source = AgentSource { agent: agent.clone(), path, software: software.to_owned() };
        let workload = Arc::new(Workload::default());
        match timeout(patience, renewal::renew_from(&workload, |request| source.request(request))).await {
            Ok(Ok(())) => {}
            Ok(Err(NotIssued::NoDomain)) => return None,
            Ok(Err(NotIssued::NoAgent(error))) => {
                tracing::debug!(error, "no agent gives this program an identity");
                return None;
            }
            Ok(Err(NotIssued::Failed(error))) => tracing::warn!(error, "there is no certificate yet"),
            Err(_) => tracing::warn!(%agent, "the agent has not issued a certificate yet"),
        }
        let renewing = renewal::keep_fresh(Arc::clone(&workload), source, CancellationToken::new());
        let renewal = Arc::new(AbortOnDropHandle::new(tokio::spawn(renewing)));
        Some(Self { workload, _renewal: renewal })
    }

    /// Secures calls of services, and keeps the identity renewed as long as a clone of this transport lives.
    pub fn transport(self) -> Transport {
        Transport::tls_of_services(Arc::new(self))
    }

    /// The identity.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }
}

impl AgentSource {
    async fn connect(&self) -> Result<Connection, NotIssued> {
        handshake::connect(&Transport::default(), &self.agent, &self.software)
            .await
            .map_err(|error| NotIssued::NoAgent(error.to_string()))
    }

    async fn request(&self, csr: Vec<u8>) -> Result<Certified, NotIssued> {
        let request = IssueWorkloadRequest { path: self.path.clone(), csr: csr.into() };
        let response = self.connect().await?.workload().issue_workload(request).await;
        let response = match response {
            Ok(response) => response.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => {
                return Err(NotIssued::NoAgent(status.message().to_owned()));
            }
            Err(status) => return Err(NotIssued::Failed(status.message().to_owned())),
        };
        if response.chain.is_empty() {
            return Err(NotIssued::NoDomain);
        }
        let bundle: Result<TrustBundle, _> = response.bundle.unwrap_or_default().try_into();
        let bundle = bundle.map_err(|error| NotIssued::Failed(error.to_string()))?;
        let chain = response.chain.iter().map(|one| one.to_vec().into()).collect();
        Ok(Certified { chain, bundle })
    }
}

impl From<String> for NotIssued {
    fn from(error: String) -> Self {
        Self::Failed(error)
    }
}

impl Source for AgentSource {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        let late = || Err(NotIssued::Failed(format!("no response within {} s", TIMEOUT.as_secs())));
        timeout(TIMEOUT, self.request(request)).await.unwrap_or_else(|_| late()).map_err(
            |error| match error {
                NotIssued::NoDomain => "the agent has left the trust domain".to_owned(),
                NotIssued::NoAgent(error) | NotIssued::Failed(error) => error,
            },
        )
    }
}

impl TlsIdentity for ProgramIdentity {
    fn is_ready(&self) -> bool {
        self.workload.is_ready()
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        self.workload.connect(peer, stream)
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.workload.accept(stream)
    }
}
