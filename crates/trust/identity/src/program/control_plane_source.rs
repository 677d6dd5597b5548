//! Gets certificates from control planes, for programs without an agent. A one-time token gets the first certificate;
//! each certificate gets the next one.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{ServiceName, SpiffePath};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::{Address, TlsIdentity as _, Transport},
    v1::{IssueRequest, JoinRequest},
};
use prost::Message as _;
use tokio::{sync::watch, time::timeout};
use tonic::{Code, Status};

use super::{IdentityRequest, Progress, kept_folder};
use crate::{
    Credentials, IdentityError, JoinToken, Joining, Member, Trust, Workload,
    issue_response::{self, refused},
    renewal::{Certified, Source},
    signed_message::{self, Purpose},
};

/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Gets certificates from control planes.
#[derive(Debug)]
pub(super) struct ControlPlaneSource {
    control_planes: Vec<Address>,
    /// Transport that authenticates with the certificate.
    transport: Transport,
    /// Transport without a certificate. It verifies the server with the root that the token pins.
    joining: Transport,
    service: ServiceName,
    token: Option<JoinToken>,
    software: String,
    /// Folder in which the certificate is saved for the next start, because the token works only once.
    kept: Option<PathBuf>,
    /// Whether a saved certificate is in use that no control plane has accepted yet. It is tried at once, and if it
    /// is refused, the token is used.
    untried: watch::Sender<bool>,
    pub(super) workload: Arc<Workload>,
    pub(super) progress: Arc<Progress>,
}

impl ControlPlaneSource {
    /// Creates the source of a program without an agent that has a token or a saved certificate.
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
        let tls =
            |workload, token| Transport::tls(Arc::new(Member::new(workload, token).secured())).to_upstreams();
        Some(Self {
            control_planes: request.control_planes.clone(),
            transport: tls(Arc::clone(&workload), None),
            joining: tls(Arc::default(), request.token.clone()),
            service: service.clone(),
            token: request.token.clone(),
            software: request.software.clone(),
            kept,
            untried: watch::Sender::new(false),
            workload,
            progress: Arc::default(),
        })
    }

    /// Starts with the certificate that an earlier start saved, if there is one.
    pub(super) fn begin(&self) {
        self.use_kept();
        self.untried.send_replace(self.token.is_some() && self.workload.is_ready());
    }

    /// Waits until a control plane has issued a certificate in place of a saved one. Returns at once if no saved
    /// certificate is in use.
    pub(super) fn tried(&self) -> impl Future<Output = ()> + use<> {
        let (workload, mut untried) = (Arc::clone(&self.workload), self.untried.subscribe());
        async move {
            workload.ready().await;
            // The sender lives as long as the renewal task. Without that task there is nothing to wait for.
            let _ = untried.wait_for(|untried| !untried).await;
        }
    }

    /// Uses the certificate saved by an earlier start or by another part of this program, because the token works
    /// only once.
    fn use_kept(&self) {
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

    /// Returns the certificate if peers still accept it.
    fn valid_credentials(&self) -> Option<Arc<Credentials>> {
        let own = self.workload.credentials().filter(|own| own.validity().1 > self.workload.now());
        own.filter(|_| !self.workload.is_revoked())
    }

    /// Requests a certificate with the current one, or with the token if there is none or the current one is refused.
    /// A program that was revoked while it was stopped learns of the revocation only from the refusal.
    async fn request(&self, csr: Bytes) -> Result<Certified, String> {
        // Another part of this program, or another program with the same environment, may have joined meanwhile.
        if self.valid_credentials().is_none() || self.is_untried() {
            self.use_kept();
        }
        let refused = match self.valid_credentials() {
            Some(own) => match self.renew(&own, csr.clone()).await? {
                Ok(certified) => return Ok(certified),
                Err(refused) => refused,
            },
            None => "its certificate has expired, was revoked, or cannot be used".to_owned(),
        };
        let Some(token) = &self.token else { return Err(self.needs_token(&refused)) };
        let joined = self.join(token, csr).await?;
        joined.map_err(|status| match status.code() {
            Code::PermissionDenied if self.kept.as_deref().is_some_and(Credentials::are_kept) => {
                self.needs_token(status.message())
            }
            _ => status.message().to_owned(),
        })
    }

    /// Whether the certificate saved by an earlier start is in use, and this start has not got one yet.
    pub(super) fn is_untried(&self) -> bool {
        *self.untried.borrow()
    }

    fn needs_token(&self, problem: &str) -> String {
        format!(
            "{service} has to join again: {problem}; make a token with `fairmesh identity token --service {service}` on the control \
             plane's machine, and start the program with it in FAIRMESH_JOIN_TOKEN",
            service = self.service
        )
    }

    /// Connects to the first reachable control plane.
    async fn connect(&self, transport: &Transport) -> Result<Connection, String> {
        let mut failed = String::new();
        for address in &self.control_planes {
            match handshake::connect(transport, address, &self.software).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = error.with_causes(),
            }
        }
        Err(failed)
    }

    /// Joins with the token. After an outer error, it is unknown whether the token was used.
    async fn join(&self, token: &JoinToken, csr: Bytes) -> Result<Result<Certified, Status>, String> {
        let connection = self.connect(&self.joining).await?;
        let joining = Joining::Service(self.service.clone());
        let request = JoinRequest {
            csr: csr.clone(),
            token: token.id().to_vec().into(),
            proof: token.proof(&joining, "", &csr).into(),
            service: joining.to_string(),
            ..JoinRequest::default()
        };
        let certified = async {
            let response = connection.identity().join(request).await?.into_inner();
            let trust = Trust::pinned(&issue_response::bundle(&response)?, token).map_err(refused)?;
            issue_response::certified(&trust, &csr, &response, self.workload.now())
        };
        Ok(certified.await)
    }

    /// Renews with the current certificate. The inner error means that the certificate is useless; after an outer
    /// error this is unknown.
    async fn renew(&self, own: &Credentials, csr: Bytes) -> Result<Result<Certified, String>, String> {
        let connection = match self.connect(&self.transport).await {
            Ok(connection) => connection,
            // A refused certificate may look like a closed connection, so the token is tried next. If no control
            // plane is reachable, joining fails too, and the token stays usable.
            Err(failed) if self.token.is_some() => return Ok(Err(failed)),
            Err(failed) => return Err(failed),
        };
        let request = IssueRequest {
            path: self.service.to_string(),
            csr: csr.clone(),
            signed_at: self.workload.now().as_secs(),
            ..IssueRequest::default()
        };
        let message = signed_message::sign(own, Purpose::IssueRequest, b"", request.encode_to_vec());
        let message = message.map_err(|error| error.to_string())?;
        let certified = async {
            let response = connection.identity().issue(message).await?.into_inner();
            issue_response::certified(own.trust(), &csr, &response, self.workload.now())
        };
        match certified.await {
            Ok(certified) => Ok(Ok(certified)),
            Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => {
                Ok(Err(status.message().to_owned()))
            }
            Err(status) => Err(status.message().to_owned()),
        }
    }
}

impl Source for ControlPlaneSource {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        let late = || Err(format!("no response of the control plane within {} s", TIMEOUT.as_secs()));
        let issued = timeout(TIMEOUT, self.request(request.into())).await.unwrap_or_else(|_| late());
        if issued.is_ok() {
            self.untried.send_replace(false);
        }
        self.progress.set_problem(issued.as_ref().err().cloned());
        issued
    }

    fn has_to_try(&self) -> bool {
        self.is_untried()
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        self.kept.as_ref().map_or(Ok(()), |folder| credentials.save(folder))
    }
}
