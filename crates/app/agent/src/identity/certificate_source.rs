//! Certificates from a control plane, through any intermediate processes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_identity::{
    Credentials, IdentityError, Joining, PrivateKey, Trust,
    issue_response::{self, refused},
    renewal::{Certified, Source},
    signed_message::{self, Purpose},
};
use fairmesh_model::{JwtKey, ProgramFacts, ServiceName, SpiffePath, TrustBundle, WorkloadEntry};
use fairmesh_wire::{
    handshake::{self, ConnectError, Connection},
    transport::Address,
    v1::{self, SignedMessage},
};
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::{Shared, own_path};

/// Timeout of one request for a certificate.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a program waits for its agent to reach a control plane.
const RECONNECT_WAIT: Duration = Duration::from_secs(2);
/// Time for which an agent that cannot join waits before it checks again.
const OUTSIDE_INTERVAL: Duration = Duration::from_secs(30);

/// Time for which an agent beside a control plane waits for its socket before it says that it cannot join.
const STARTING: Duration = Duration::from_secs(5);

/// This agent's source of its own certificates.
#[derive(Debug)]
pub(super) struct ControlSource {
    pub(super) shared: Arc<Shared>,
}

impl Source for ControlSource {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        if self.shared.valid_credentials().is_some() {
            let issued = self.shared.issue(own_path(&self.shared.name), request).await;
            return issued.map_err(|status| status.message().to_owned());
        }
        loop {
            if self.shared.has_no_way_back() {
                return Err(self.shared.no_certificate());
            }
            let connection = self.shared.connect_to_join().await?;
            if self.shared.token.is_some() || matches!(connection.address(), Address::Unix(_)) {
                match self.shared.join(&connection, request.clone()).await {
                    Err(status) if self.shared.token.is_none() && is_no_domain(status.code()) => {}
                    joined => {
                        self.shared.set_member(true);
                        return joined.map_err(|status| status.message().to_owned());
                    }
                }
            }
            if self.shared.was_member() {
                return Err(self.shared.no_certificate());
            }
            self.shared.set_member(false);
            tokio::time::sleep(OUTSIDE_INTERVAL).await;
        }
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        self.shared.save(credentials)
    }
}

/// Whether this status means that a control plane issues no certificates, either at all or to this user.
fn is_no_domain(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::Unimplemented | Code::PermissionDenied)
}

impl Shared {
    /// Whether this agent was a member, but can join again neither with a token nor over a Unix socket.
    fn has_no_way_back(&self) -> bool {
        self.was_member() && self.token.is_none() && !self.is_beside()
    }

    /// Whether the address of a control plane is a Unix socket on this machine.
    pub(super) fn is_beside(&self) -> bool {
        let (_, addresses) = &self.control_planes;
        addresses.iter().any(|address| matches!(address, Address::Unix(_)))
    }

    /// Opens a connection for joining. There are no watches without a certificate, so a joining agent follows nothing
    /// yet.
    pub(super) async fn connect_to_join(&self) -> Result<Connection, String> {
        if self.token.is_none() {
            return Ok(tokio::select! {
                connection = self.upstream.connected() => connection,
                never = self.explain_refusal() => match never {},
            });
        }
        let (_, addresses) = &self.control_planes;
        let mut failed = String::new();
        for address in addresses {
            match handshake::connect(&self.joining, address, &format!("agent {}", self.name)).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = error.with_causes(),
            }
        }
        Err(failed)
    }

    /// Explains the missing certificate once an upstream refuses connections without one. Never returns.
    async fn explain_refusal(&self) -> Infallible {
        // The sender lives as long as the follower.
        let _ = self.upstream.state().wait_for(|state| state.error.is_some()).await;
        // A control plane that starts on this machine may listen at its port before it does at its socket.
        if self.is_beside() {
            tokio::time::sleep(STARTING).await;
        }
        while !self.is_refused_in_plaintext().await {
            tokio::time::sleep(OUTSIDE_INTERVAL).await;
        }
        let refusal = format!(
            "this agent has no certificate, without which a mesh with a trust domain accepts no connection over TCP; {}",
            self.way_in()
        );
        tracing::error!("{refusal}");
        // Only this function sets it, and only once.
        let _ = self.refusal.set(refusal);
        std::future::pending().await
    }

    async fn is_refused_in_plaintext(&self) -> bool {
        let (transport, addresses) = &self.control_planes;
        for address in addresses.iter().filter(|address| matches!(address, Address::Tcp(_))) {
            let connected = handshake::connect(transport, address, &format!("agent {}", self.name)).await;
            // A server responds to the connection, but closes it before its hello.
            if matches!(connected, Err(ConnectError::NoHello { .. })) {
                return true;
            }
        }
        false
    }

    /// Joins an agent with an external certificate, if the control planes do not know it yet.
    pub(super) async fn enroll(&self) {
        self.workload.ready().await;
        // Uses the certificate, because an earlier connection may be that of a joining client.
        self.upstream.connected().await;
        let mut pause = Duration::from_secs(1);
        while let Err(error) = self.try_enroll().await {
            tracing::warn!(error, "this agent may not vouch for programs yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(OUTSIDE_INTERVAL);
        }
    }

    async fn try_enroll(&self) -> Result<(), String> {
        let failed = |error: IdentityError| error.to_string();
        let csr = PrivateKey::generate().and_then(|key| key.signing_request()).map_err(failed)?;
        // The issued certificate is discarded; that it was issued shows that the agent has joined.
        match self.issue(own_path(&self.name), csr.clone()).await {
            Ok(_) => {
                if self.is_elsewhere().await
                    && let Err(error) = self.enroll_anew(csr).await
                {
                    tracing::warn!(error, "this agent joined in another region, and could not join anew");
                }
                return Ok(());
            }
            Err(status) if status.code() == Code::PermissionDenied => {}
            Err(status) => return Err(status.message().to_owned()),
        }
        self.enroll_anew(csr).await
    }

    async fn enroll_anew(&self, csr: Vec<u8>) -> Result<(), String> {
        let connection = self.connect_to_join().await?;
        if self.token.is_none() && !matches!(connection.address(), Address::Unix(_)) {
            return Err(format!("the agent {} has not joined: {}", self.name, self.way_in()));
        }
        self.join(&connection, csr).await.map(drop).map_err(|status| status.message().to_owned())
    }

    /// Gets the first certificate of this agent.
    pub(super) async fn join(&self, connection: &Connection, csr: Vec<u8>) -> Result<Certified, Status> {
        let region = self.region.to_string();
        let joining = Joining::Agent(self.name.clone());
        let (token, proof) = match &self.token {
            Some(token) => (token.id().to_vec(), token.proof(&joining, &region, &csr)),
            None => (Vec::new(), Vec::new()),
        };
        let (agent, csr) = (joining.to_string(), Bytes::from(csr));
        let (token, proof) = (token.into(), proof.into());
        let service = String::new();
        let request = v1::JoinRequest { agent, csr: csr.clone(), token, proof, region, service };
        let mut client = connection.identity();
        let response = within(client.join(request)).await?.into_inner();
        let bundle = issue_response::bundle(&response)?;
        let trust = match &self.token {
            Some(token) => Trust::pinned(&bundle, token),
            // The kernel vouches for the other end of the socket.
            None => Trust::new(bundle),
        };
        let certified =
            issue_response::certified(&trust.map_err(refused)?, &csr, &response, self.workload.now())?;
        // Set before the installation, because programs waiting for the installation wait for a connection next.
        *self.joined_at() = Some(Instant::now());
        Ok(certified)
    }

    /// Gets a certificate for this agent or for a program.
    pub(super) async fn issue(&self, path: SpiffePath, csr: Vec<u8>) -> Result<Certified, Status> {
        let request = v1::IssueRequest { path: path.to_string(), csr: csr.into(), ..Default::default() };
        let csr = request.csr.clone();
        let (own, response) = self.request(request).await?;
        issue_response::certified(own.trust(), &csr, &response, self.workload.now())
    }

    /// Returns the record of programs that may have a service's identity, if any. A control plane signs it, so that
    /// replicas cannot alter it.
    pub(super) async fn workload_of(
        &self,
        service: &ServiceName,
        csr: Vec<u8>,
    ) -> Result<Option<WorkloadEntry>, Status> {
        let path = SpiffePath::Service(service.clone()).to_string();
        let request =
            v1::IssueRequest { path, csr: csr.into(), describe_workload: true, ..Default::default() };
        let csr = request.csr.clone();
        let (own, response) = self.request(request).await?;
        let decoded = issue_response::open(own.trust(), &csr, &response, self.workload.now())?;
        decoded.workload.map(WorkloadEntry::try_from).transpose().map_err(refused)
    }

    /// Returns the services whose records select a program, among those that this agent may vouch for. Control planes
    /// decide and sign the response, since they have all records.
    pub(super) async fn services_of(&self, program: &ProgramFacts) -> Result<Vec<ServiceName>, Status> {
        let csr = unissued_request()?;
        let select_for = Some(program.into());
        let request = v1::IssueRequest { csr: csr.clone().into(), select_for, ..Default::default() };
        let (own, response) = self.request(request).await?;
        let services = issue_response::open(own.trust(), &csr, &response, self.workload.now())?.services;
        services.iter().map(ServiceName::new).collect::<Result<_, _>>().map_err(refused)
    }

    /// Updates the trusted roots from a control plane, which signs them for this request.
    pub(super) async fn refresh_roots(&self) -> Result<(), Status> {
        let failed = |error: IdentityError| Status::internal(error.to_string());
        let own = self.credentials_to_ask().await?;
        let bundle = self.ask_for_roots(&self.connection_to_ask().await?, &own).await?;
        if bundle.domain == *own.trust().domain()
            && self.workload.trust_roots(&bundle.roots).map_err(failed)?
        {
            tracing::info!(roots = bundle.roots.len(), "the roots of the trust domain have changed");
            if let Some(Err(error)) = self.workload.credentials().map(|own| self.save(&own)) {
                tracing::error!(%error, "the new roots cannot be kept on disk");
            }
        }
        Ok(())
    }

    /// Returns the present roots of a control plane, signed for this request.
    pub(super) async fn ask_for_roots(
        &self,
        connection: &Connection,
        own: &Credentials,
    ) -> Result<TrustBundle, Status> {
        let csr = unissued_request()?;
        let path = own_path(&self.name).to_string();
        let request =
            v1::IssueRequest { path, csr: csr.clone().into(), describe_workload: true, ..Default::default() };
        let response = self.ask(connection, own, request).await?;
        issue_response::open(own.trust(), &csr, &response, self.workload.now())?;
        issue_response::bundle(&response)
    }

    /// Returns a JWT-SVID of an identity, and the time at which it expires, in seconds since 1970.
    pub(super) async fn issue_jwt(
        &self,
        path: &SpiffePath,
        jwt_audience: Vec<String>,
    ) -> Result<(String, u64), Status> {
        let csr = unissued_request()?;
        let request = v1::IssueRequest {
            path: path.to_string(),
            csr: csr.clone().into(),
            jwt_audience,
            ..Default::default()
        };
        let (own, response) = self.request(request).await?;
        let opened = issue_response::open(own.trust(), &csr, &response, self.workload.now())?;
        match opened.jwt.is_empty() {
            true => {
                Err(Status::unimplemented("the control plane is of a release before JWT-SVIDs; upgrade it"))
            }
            false => Ok((opened.jwt, opened.jwt_expires_at)),
        }
    }

    /// Returns the keys that verify JWT-SVIDs of this domain.
    pub(super) async fn ask_for_jwt_keys(&self) -> Result<Vec<JwtKey>, Status> {
        let own = self.credentials_to_ask().await?;
        let bundle = self.ask_for_roots(&self.connection_to_ask().await?, &own).await?;
        match bundle.domain == *own.trust().domain() {
            true => Ok(bundle.jwt_keys),
            false => Err(refused("it is of another trust domain")),
        }
    }

    /// Sends a request signed by this agent, and returns the response.
    async fn request(&self, request: v1::IssueRequest) -> Result<(Arc<Credentials>, SignedMessage), Status> {
        let own = self.credentials_to_ask().await?;
        let response = self.ask(&self.connection_to_ask().await?, &own, request).await?;
        Ok((own, response))
    }

    async fn ask(
        &self,
        connection: &Connection,
        own: &Credentials,
        request: v1::IssueRequest,
    ) -> Result<SignedMessage, Status> {
        let request = v1::IssueRequest { signed_at: self.workload.now().as_secs(), ..request };
        let message = signed_message::sign(own, Purpose::IssueRequest, b"", request.encode_to_vec());
        let mut client = connection.identity();
        Ok(within(client.issue(message.map_err(refused)?)).await?.into_inner())
    }

    async fn credentials_to_ask(&self) -> Result<Arc<Credentials>, Status> {
        // An agent that is about to join gets its own certificate first.
        let _ = timeout(RECONNECT_WAIT, self.workload.ready()).await;
        self.valid_credentials().ok_or_else(|| Status::unavailable(self.no_certificate()))
    }

    async fn connection_to_ask(&self) -> Result<Connection, Status> {
        timeout(self.reconnect_wait(), self.upstream.connected()).await.map_err(|_| {
            Status::unavailable("no control plane can be reached to issue a certificate; retry when one can")
        })
    }

    /// Returns how long to wait for a control plane. An agent that just joined, or whose control plane restarts, soon
    /// reconnects. If no control plane responds for longer, waiting would only delay programs that start.
    fn reconnect_wait(&self) -> Duration {
        let state = self.upstream.state();
        let state = state.borrow();
        match state.connected {
            true => RECONNECT_WAIT,
            false => {
                let since = self.joined_at().map_or(state.since, |at| at.max(state.since));
                RECONNECT_WAIT.saturating_sub(since.elapsed())
            }
        }
    }
}

/// A signing request for a key that is never certified: it only binds the response to the request.
fn unissued_request() -> Result<Vec<u8>, Status> {
    let request = PrivateKey::generate().and_then(|key| key.signing_request());
    request.map_err(|error| Status::internal(error.to_string()))
}

pub(super) async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::unavailable(format!("no response within {} s", TIMEOUT.as_secs()));
    timeout(TIMEOUT, call).await.unwrap_or_else(|_| Err(late()))
}
