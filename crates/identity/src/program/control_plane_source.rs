//! Certificates of a program that runs without an agent, from control planes: the first by a one-time token, and each later one by
//! the one before.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{ServiceName, SpiffePath};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::{Address, TlsIdentity as _, Transport},
    v1::{IssueRequest, JoinRequest},
};
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{IdentityRequest, Progress, kept_folder};
use crate::{
    Credentials, IdentityError, JoinToken, Joining, Member, Trust, Workload,
    issue_response::{self, refused},
    renewal::{Certified, Source},
    signed::{self, Purpose},
};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Issues by control planes.
#[derive(Debug)]
pub(super) struct ControlPlaneSource {
    control_planes: Vec<Address>,
    /// Pins the root while there is no certificate.
    transport: Transport,
    service: ServiceName,
    token: Option<JoinToken>,
    software: String,
    /// Where the certificate is kept, for the next start: the token works once.
    kept: Option<PathBuf>,
    pub(super) workload: Arc<Workload>,
    pub(super) progress: Arc<Progress>,
}

impl ControlPlaneSource {
    /// Of a program without an agent, if it has a token, or kept a certificate.
    pub(super) fn of(request: &IdentityRequest) -> Option<Self> {
        let Some(SpiffePath::Service(service)) = &request.path else { return None };
        if request.control_planes.is_empty() {
            return None;
        }
        let kept = kept_folder(&service.to_string());
        if request.token.is_none() && !kept.as_deref().is_some_and(Credentials::are_kept) {
            return None;
        }
        if kept.is_none() {
            tracing::warn!(
                "FAIRMESH_IDENTITY_DIR names no folder for the certificate of this program: its next start needs another token"
            );
        }
        let workload = Arc::<Workload>::default();
        let member = Member::new(Arc::clone(&workload), request.token.clone()).secured();
        Some(Self {
            control_planes: request.control_planes.clone(),
            transport: Transport::tls(Arc::new(member)),
            service: service.clone(),
            token: request.token.clone(),
            software: request.software.clone(),
            kept,
            workload,
            progress: Arc::default(),
        })
    }

    /// Uses the certificate that was kept, by an earlier start or another part of this program: the token works once.
    pub(super) fn use_kept(&self) {
        let Some(folder) = &self.kept else { return };
        let used = Credentials::load(folder, self.workload.now()).and_then(|kept| match kept {
            Some(kept) if kept.id().path == SpiffePath::Service(self.service.clone()) => {
                self.workload.install(kept)
            }
            Some(kept) => Err(IdentityError::Crypto(format!("it is that of {}", kept.id()))),
            None => Ok(()),
        });
        if let Err(error) = used {
            tracing::warn!(%error, folder = %folder.display(), "the certificate that was kept cannot be used");
        }
    }

    /// The certificate, if it is still accepted.
    fn valid_credentials(&self) -> Option<Arc<Credentials>> {
        let own = self.workload.credentials().filter(|own| own.validity().1 > self.workload.now());
        own.filter(|_| !self.workload.is_revoked())
    }

    async fn request(&self, csr: Bytes) -> Result<Certified, String> {
        if self.valid_credentials().is_none() {
            self.use_kept();
        }
        let own = self.valid_credentials();
        if own.is_none() && self.token.is_none() {
            return Err(self.needs_token("its certificate has expired, was revoked, or cannot be used"));
        }
        let connection = self.connect().await?;
        let issued = match (own, &self.token) {
            (Some(own), _) => self.renew(&connection, &own, csr).await,
            (None, Some(token)) => self.join(&connection, token, csr).await,
            (None, None) => return Err(self.needs_token("it has no certificate")),
        };
        issued.map_err(|status| match status.code() {
            Code::PermissionDenied if self.workload.is_ready() => self.needs_token(status.message()),
            _ => status.message().to_owned(),
        })
    }

    fn needs_token(&self, problem: &str) -> String {
        format!(
            "{service} has to join again: {problem}; make a token with `fairmesh identity token --service {service}` on the control \
             plane's machine, and start the program with it in FAIRMESH_JOIN_TOKEN",
            service = self.service
        )
    }

    /// A connection with the first control plane that can be reached.
    async fn connect(&self) -> Result<Connection, String> {
        let mut failed = String::new();
        for address in &self.control_planes {
            match handshake::connect(&self.transport, address, &self.software).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = error.with_causes(),
            }
        }
        Err(failed)
    }

    async fn join(
        &self,
        connection: &Connection,
        token: &JoinToken,
        csr: Bytes,
    ) -> Result<Certified, Status> {
        let joining = Joining::Service(self.service.clone());
        let request = JoinRequest {
            csr: csr.clone(),
            token: token.id().to_vec().into(),
            proof: token.proof(&joining, "", &csr).into(),
            service: joining.to_string(),
            ..JoinRequest::default()
        };
        let response = connection.identity().join(request).await?.into_inner();
        let trust = Trust::pinned(&issue_response::bundle(&response)?, token).map_err(refused)?;
        issue_response::certified(&trust, &csr, &response, self.workload.now())
    }

    async fn renew(
        &self,
        connection: &Connection,
        own: &Credentials,
        csr: Bytes,
    ) -> Result<Certified, Status> {
        let now = self.workload.now();
        let request = IssueRequest {
            path: self.service.to_string(),
            csr: csr.clone(),
            signed_at: now.as_secs(),
            ..IssueRequest::default()
        };
        let message = signed::sign(own, Purpose::IssueRequest, b"", request.encode_to_vec());
        let message = message.map_err(|error| Status::internal(error.to_string()))?;
        let response = connection.identity().issue(message).await?.into_inner();
        issue_response::certified(own.trust(), &csr, &response, self.workload.now())
    }
}

impl Source for ControlPlaneSource {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        let late = || Err(format!("no response of the control plane within {} s", TIMEOUT.as_secs()));
        let issued = timeout(TIMEOUT, self.request(request.into())).await.unwrap_or_else(|_| late());
        self.progress.set_problem(issued.as_ref().err().cloned());
        issued
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        self.kept.as_ref().map_or(Ok(()), |folder| credentials.save(folder))
    }
}
