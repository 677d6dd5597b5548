//! The identity of a program. It comes from the machine's agent, from a SPIFFE Workload API, or, without an agent,
//! from the control plane.

mod control_plane_source;
mod late_identity;
mod not_issued;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fairmesh_model::{Identity, Invalid, MeshRole, SpiffeId, SpiffePath, TrustBundle};
use fairmesh_wire::{
    environment,
    handshake::{self, ConnectError, Connection},
    transport::{
        Address, Closed, ExpectedPeer, FederatedCallers, Handshake, StatedCall, TlsIdentity, Transport,
    },
    v1::IssueWorkloadRequest,
};
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::Code;

use crate::{
    Credentials, IdentityError, JoinToken, RevocationSource, Workload, WorkloadApi,
    renewal::{self, Certified, Source},
    revocations,
};

use control_plane_source::ControlPlaneSource;
pub use late_identity::LateIdentity;
use not_issued::NotIssued;

/// The gRPC method with which a gateway reports its load.
const REPORT_GATEWAY: &str = "/fairmesh.v1.Signals/ReportGateway";

/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Time for which a program that calls as soon as it starts waits for its first certificate from an agent that listens and
/// has not answered, such as one on a busy machine. An agent that refuses, that has no control plane or whose mesh has no
/// trust domain, and a missing agent end the wait at once.
pub const FIRST_CERTIFICATE_WAIT: Duration = Duration::from_secs(15);

/// Time after which a program with a certificate of an earlier start uses it, while its agent does not answer.
const KEPT_CERTIFICATE_WAIT: Duration = Duration::from_secs(2);

/// Pause before a program repeats a handshake that its agent did not answer in time.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(200);

/// Time for which a starting program waits for the record of revocations.
const REVOCATIONS_WAIT: Duration = Duration::from_secs(1);

/// Obtains certificates from the agent at an address.
#[derive(Debug)]
struct AgentSource {
    agent: Address,
    /// Path of the identity. Empty for an operator, whose name the agent chooses.
    path: String,
    software: String,
    /// Folder in which the certificate is saved, for starts during an outage of the agent.
    kept: Option<PathBuf>,
    workload: Arc<Workload>,
    progress: Arc<Progress>,
}

/// State known from the agent's last response.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the mesh has a trust domain.
    is_required: AtomicBool,
    /// Reason why the agent issued no certificate at the last attempt.
    problem: watch::Sender<Option<String>>,
}

/// The identity of this program. Until dropped, it renews its certificate and follows revocations.
#[derive(Clone, Debug)]
pub struct ProgramIdentity {
    workload: Arc<Workload>,
    progress: Arc<Progress>,
    following: RevocationTask,
    states_calls: bool,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

/// The task that follows the record of revocations.
#[derive(Clone, Debug, Default)]
struct RevocationTask {
    stop: CancellationToken,
    ended: CancellationToken,
}

/// How a server accepts connections.
#[derive(Clone, Debug)]
pub enum ServerIdentity {
    /// With mutual TLS only.
    Secured(ProgramIdentity),
    /// In plaintext, because the mesh has no trust domain.
    Plaintext,
    /// In plaintext for now, because the agent does not respond or has not reached a control plane yet. The mesh may
    /// still turn out to have a trust domain. Ask again before the server is registered; until then it must not be
    /// called.
    Undecided(Arc<LateIdentity>),
}

/// Whether the mesh has a trust domain, as far as the agent of a machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The agent is a member of a trust domain.
    Member,
    /// The mesh has no trust domain.
    NoDomain,
    /// The agent has reached no control plane since it started.
    Undecided,
    /// The agent does not respond.
    NoAgent,
}

/// The source from which a program gets its identity, and the identity that it asks for.
#[derive(Clone, Debug)]
pub struct IdentityRequest {
    /// Address of the agent. It must be a Unix socket, where the agent can see the user. With a Workload API: address
    /// of any process of the mesh that serves the revocations.
    pub agent: Address,
    /// Unix socket of a SPIFFE Workload API to use instead of the agent; see
    /// [`environment::workload_api`](fairmesh_wire::environment::workload_api).
    pub workload_api: Option<Address>,
    /// Control planes from which a program without an agent gets its certificates, if it has a token or a saved
    /// certificate.
    pub control_planes: Vec<Address>,
    /// Token with which the program joins at these control planes; see [`JoinToken::of_environment`].
    pub token: Option<JoinToken>,
    /// The requested identity. `None` requests an operator's identity, named after machine and user.
    pub path: Option<SpiffePath>,
    /// Name and version of the program, for display.
    pub software: String,
    /// Time to wait for the first certificate.
    pub patience: Duration,
}

impl ProgramIdentity {
    /// Gets the identity of a caller. If no certificate arrives within the patience, it arrives later; until then the
    /// caller cannot call endpoints that require mutual TLS. `None` if no agent can issue an identity.
    pub async fn of_caller(request: IdentityRequest) -> Option<Self> {
        if let Some(socket) = &request.workload_api {
            return Some(Self::of_workload_api(&request, socket.clone()).await);
        }
        if let Some(source) = ControlPlaneSource::of(&request) {
            return Some(Self::of_control_plane(&request, source).await);
        }
        let source = request.source()?;
        let issued = source.first(request.patience).await;
        let this = Self::of_agent(source);
        if issued.is_ok() {
            this.know_revocations().await;
        }
        Some(this)
    }

    /// Gets the identity of a server. If the agent is a member of a trust domain, the server accepts only mutual TLS;
    /// this is decided once. If no certificate arrives within the patience, connections fail until one arrives.
    pub async fn of_server(request: IdentityRequest) -> ServerIdentity {
        match Self::for_server(&request).await {
            Ok(Some(identity)) => ServerIdentity::Secured(identity),
            Ok(None) => ServerIdentity::Plaintext,
            Err(_) => ServerIdentity::Undecided(Arc::new(LateIdentity::new(request))),
        }
    }

    /// Gets the identity of a server; `None` if the mesh has no trust domain.
    ///
    /// # Errors
    /// While the agent cannot say whether the mesh has a trust domain.
    async fn for_server(request: &IdentityRequest) -> Result<Option<Self>, Membership> {
        if let Some(socket) = &request.workload_api {
            return Ok(Some(Self::of_workload_api(request, socket.clone()).await));
        }
        if let Some(source) = ControlPlaneSource::of(request) {
            return Ok(Some(Self::of_control_plane(request, source).await));
        }
        let Some(source) = request.source() else { return Ok(None) };
        let unknown = |error: String, membership| {
            tracing::debug!(error, "no agent gives this server an identity");
            Err(membership)
        };
        match source.first(request.patience).await {
            Ok(()) => {
                let this = Self::of_agent(source);
                this.know_revocations().await;
                return Ok(Some(this));
            }
            Err(NotIssued::NoDomain) => return Ok(None),
            Err(NotIssued::NoAgent(error)) => return unknown(error, Membership::NoAgent),
            Err(NotIssued::Undecided(error)) => return unknown(error, Membership::Undecided),
            // The agent may be starting. The renewal warns if this lasts.
            Err(NotIssued::Unavailable(error)) => {
                tracing::info!(error, "this server has no certificate yet, and accepts no calls until then");
            }
            Err(NotIssued::Failed(error)) => {
                tracing::warn!(error, "this server has no certificate yet, and accepts no calls until then");
            }
        }
        Ok(Some(Self::of_agent(source)))
    }

    /// Gets the identity from a Workload API. Connections never use plaintext, because the API was configured
    /// explicitly.
    async fn of_workload_api(request: &IdentityRequest, socket: Address) -> Self {
        let (workload, progress) = (Arc::<Workload>::default(), Arc::<Progress>::default());
        progress.is_required.store(true, Ordering::Relaxed);
        let api = WorkloadApi { socket, path: request.path.clone() };
        let noted = Arc::clone(&progress);
        let following = api.follow(Arc::clone(&workload), move |problem| noted.set_problem(problem));
        let revocations = RevocationSource {
            addresses: vec![request.agent.clone()],
            transport: Transport::tls(Arc::clone(&workload) as Arc<_>),
            software: request.software.clone(),
            with_roots: false,
        };
        let (end, revoking) = follow_revocations(&workload, revocations);
        let tasks = [tokio::spawn(following), tokio::spawn(revoking)];
        let tasks = Arc::new(tasks.map(AbortOnDropHandle::new));
        let this = Self { workload, progress, following: end, states_calls: false, _tasks: tasks };
        if timeout(request.patience, this.workload.ready()).await.is_ok() {
            this.know_revocations().await;
        } else if let Some(problem) = this.problem() {
            tracing::warn!(problem, "this program has no certificate yet");
        }
        this
    }

    /// Gets the identity by joining at a control plane. Connections never use plaintext, because joining was
    /// configured explicitly.
    async fn of_control_plane(request: &IdentityRequest, source: ControlPlaneSource) -> Self {
        let progress = Arc::clone(&source.progress);
        progress.is_required.store(true, Ordering::Relaxed);
        let revocations = RevocationSource {
            addresses: request.control_planes.clone(),
            transport: Transport::tls(Arc::clone(&source.workload) as Arc<_>),
            software: request.software.clone(),
            with_roots: false,
        };
        source.begin();
        let (workload, tried) = (Arc::clone(&source.workload), source.tried());
        let this = Self::keep((workload, progress), source, revocations);
        // The task continues after the patience has run out: cancelling a request might waste the token.
        let mut problems = this.progress.problem.subscribe();
        let refused = async {
            // The sender lives in `this`.
            let _ = problems.wait_for(Option::is_some).await;
        };
        let responded = async {
            tokio::select! { () = tried => {} () = refused => {} }
        };
        let _ = timeout(request.patience, responded).await;
        if this.workload.is_ready() {
            this.know_revocations().await;
        }
        this
    }

    /// Waits for the record of revocations, so that the first connections are checked against it. An agent that has
    /// no record and reaches no control plane sends it late; the program then starts without it.
    async fn know_revocations(&self) {
        let _ = timeout(REVOCATIONS_WAIT, self.workload.revocations_known()).await;
    }

    fn of_agent(source: AgentSource) -> Self {
        let kept = (Arc::clone(&source.workload), Arc::clone(&source.progress));
        let revocations = RevocationSource {
            addresses: vec![source.agent.clone()],
            transport: Transport::default(),
            software: source.software.clone(),
            with_roots: false,
        };
        Self::keep(kept, source, revocations)
    }

    fn keep(
        (workload, progress): (Arc<Workload>, Arc<Progress>),
        source: impl Source + 'static,
        revocations: RevocationSource,
    ) -> Self {
        let (following, followed) = follow_revocations(&workload, revocations);
        let renewing = renewal::keep_fresh(Arc::clone(&workload), source, CancellationToken::new());
        let tasks = [tokio::spawn(renewing), tokio::spawn(followed)];
        let tasks = Arc::new(tasks.map(AbortOnDropHandle::new));
        Self { workload, progress, following, states_calls: false, _tasks: tasks }
    }

    /// Signs each call that other processes forward, so that the control plane authorizes the call by this identity
    /// instead of the agent's. Programs that act as services leave signing to their agent, because the agent owns
    /// their endpoints.
    #[must_use]
    pub fn stating_calls(self) -> Self {
        Self { states_calls: true, ..self }
    }

    /// Returns a transport for calls and connections with this identity. The identity is renewed until the last clone
    /// of the transport is dropped.
    pub fn transport(self) -> Transport {
        Transport::tls(Arc::new(self))
    }
}

/// Returns a future that follows an identity's revocations, and a handle that stops it.
fn follow_revocations(
    workload: &Arc<Workload>,
    source: RevocationSource,
) -> (RevocationTask, impl Future<Output = ()> + Send + 'static) {
    let following = RevocationTask::default();
    let RevocationTask { stop, ended } = following.clone();
    let followed = revocations::follow_until(Arc::clone(workload), source, stop);
    // The guard is dropped with the task, even if the task never ran, so `close` never waits for an aborted task.
    let ended = ended.drop_guard();
    let followed = async move {
        followed.await;
        drop(ended);
    };
    (following, followed)
}

impl IdentityRequest {
    /// Checks the token of a program without an agent.
    ///
    /// # Errors
    /// When the token does not name a service.
    pub fn check(&self) -> Result<(), Invalid> {
        match (&self.token, &self.path) {
            (None, _) | (_, Some(SpiffePath::Service(_))) => Ok(()),
            _ if self.control_planes.is_empty() || self.workload_api.is_some() => Ok(()),
            _ => Err(Invalid::new(
                environment::JOIN_TOKEN,
                "is for a service, and this program names none as its identity",
                "name the service for which the token was made, with --as or .identity(..), or unset FAIRMESH_JOIN_TOKEN",
            )),
        }
    }

    fn source(&self) -> Option<AgentSource> {
        let Address::Unix(_) = &self.agent else { return None };
        // The program has no agent then, and control planes do not assign names to programs.
        if !self.control_planes.is_empty() {
            return None;
        }
        let path = self.path.as_ref().map(ToString::to_string).unwrap_or_default();
        let kept = kept_folder(&path);
        Some(AgentSource {
            agent: self.agent.clone(),
            kept,
            path,
            software: self.software.clone(),
            workload: Arc::default(),
            progress: Arc::default(),
        })
    }
}

/// Returns the folder in which an identity's certificate is saved. Each identity has a separate folder, because
/// programs may share the environment variable.
fn kept_folder(path: &str) -> Option<PathBuf> {
    let of_path = if path.is_empty() { "fairmesh/operator" } else { path };
    environment::identity_dir().map(|folder| folder.join(of_path))
}

impl AgentSource {
    /// Gets the first certificate, if the agent issues one within the patience.
    async fn first(&self, patience: Duration) -> Result<(), NotIssued> {
        let has_kept = self.kept.as_ref().is_some_and(|folder| folder.exists());
        let patience = if has_kept { patience.min(KEPT_CERTIFICATE_WAIT) } else { patience };
        let issuing = async {
            self.check_issues().await?;
            renewal::renew_from(&self.workload, |request| self.request(request)).await
        };
        let issued = timeout(patience, issuing).await.unwrap_or_else(|_| Err(self.late()));
        let issued = match issued {
            Ok(()) => {
                self.keep();
                Ok(())
            }
            Err(NotIssued::NoAgent(error)) => self.use_kept(error).map_err(NotIssued::NoAgent),
            Err(NotIssued::Undecided(error)) => self.use_kept(error).map_err(NotIssued::Undecided),
            Err(NotIssued::Unavailable(error)) => self.use_kept(error).map_err(NotIssued::Unavailable),
            // The agent refused, so it is no longer a member.
            Err(refused) => Err(refused),
        };
        self.progress.note(&issued);
        issued
    }

    /// Saves the certificate if a folder is configured.
    fn keep(&self) {
        let (Some(folder), Some(own)) = (&self.kept, self.workload.credentials()) else { return };
        if let Err(error) = own.save(folder) {
            tracing::error!(%error, "the certificate cannot be kept: this program cannot start while its agent is away");
        }
    }

    /// Uses the certificate saved by an earlier start, because the agent issues none for `reason`.
    fn use_kept(&self, reason: String) -> Result<(), String> {
        let Some(folder) = &self.kept else { return Err(reason) };
        let now = self.workload.now();
        let unusable = |error: IdentityError| {
            format!("{reason}; the certificate in {} cannot be used: {error}", folder.display())
        };
        match Credentials::load(folder, now).map_err(unusable)? {
            None => Err(format!("{reason}; {} holds no certificate of an earlier start", folder.display())),
            Some(kept) => {
                let (id, left) = (kept.id().clone(), kept.validity().1.saturating_sub(now));
                self.workload.install(kept).map_err(unusable)?;
                tracing::warn!(%id, reason, left_s = left.as_secs(), "the certificate of an earlier start is used");
                Ok(())
            }
        }
    }

    /// Connects to the agent. An agent that listens and does not answer is tried again until the caller's time limit.
    async fn connect(&self) -> Result<Connection, NotIssued> {
        loop {
            match handshake::connect(&Transport::default(), &self.agent, &self.software).await {
                Ok(connection) => return Ok(connection),
                Err(ConnectError::NoHello { status, .. }) if status.code() == Code::DeadlineExceeded => {
                    tokio::time::sleep(HANDSHAKE_PAUSE).await;
                }
                Err(error) => return Err(NotIssued::NoAgent(error.to_string())),
            }
        }
    }

    fn late(&self) -> NotIssued {
        NotIssued::Unavailable(format!("the agent at {} has not responded yet", self.agent))
    }

    /// Checks, without a key, that the agent issues certificates. The first key of a process takes about 20 ms to
    /// collect entropy, and programs of a mesh without a trust domain need no key. The agent refuses an empty signing
    /// request only if it is a member.
    async fn check_issues(&self) -> Result<(), NotIssued> {
        match self.request(Vec::new()).await {
            Ok(_) | Err(NotIssued::Failed(_)) => Ok(()),
            Err(not_issued) => Err(not_issued),
        }
    }

    async fn request(&self, csr: Vec<u8>) -> Result<Certified, NotIssued> {
        let request = IssueWorkloadRequest { path: self.path.clone(), csr: csr.into() };
        let response = self.connect().await?.workload().issue_workload(request).await;
        let response = response.map_err(|status| NotIssued::of(&status))?.into_inner();
        if response.undecided {
            let agent = &self.agent;
            return Err(NotIssued::Undecided(format!(
                "the agent at {agent} has reached no control plane yet, and does not know whether the mesh has a trust domain"
            )));
        }
        if response.chain.is_empty() {
            return Err(NotIssued::NoDomain);
        }
        let bundle: Result<TrustBundle, _> = response.bundle.unwrap_or_default().try_into();
        let bundle = bundle.map_err(|error| NotIssued::Failed(error.to_string()))?;
        let chain = response.chain.iter().map(|one| one.to_vec().into()).collect();
        Ok(Certified { chain, bundle })
    }
}

impl Progress {
    /// Records that the mesh has a trust domain if the agent issued a certificate, or was a member and failed to
    /// issue one.
    fn note<T>(&self, issued: &Result<T, NotIssued>) {
        if matches!(issued, Ok(_) | Err(NotIssued::Unavailable(_) | NotIssued::Failed(_))) {
            self.is_required.store(true, Ordering::Relaxed);
        }
        let problem = match issued {
            Err(
                NotIssued::Failed(problem)
                | NotIssued::NoAgent(problem)
                | NotIssued::Undecided(problem)
                | NotIssued::Unavailable(problem),
            ) => Some(problem.clone()),
            Ok(_) | Err(NotIssued::NoDomain) => None,
        };
        self.set_problem(problem);
    }

    fn set_problem(&self, problem: Option<String>) {
        self.problem.send_replace(problem);
    }
}

impl Source for AgentSource {
    async fn certify(&self, request: Vec<u8>) -> Result<Certified, String> {
        loop {
            let issued = timeout(TIMEOUT, self.request(request.clone())).await;
            let issued = issued.unwrap_or_else(|_| Err(self.late()));
            self.progress.note(&issued);
            let failure = match issued {
                Ok(certified) => return Ok(certified),
                Err(failure) => failure,
            };
            let pause = if self.workload.is_ready() { None } else { failure.first_pause() };
            let Some(pause) = pause else { return Err(failure.into_message()) };
            tokio::time::sleep(pause).await;
        }
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        self.kept.as_ref().map_or(Ok(()), |folder| credentials.save(folder))
    }
}

impl TlsIdentity for ProgramIdentity {
    fn is_ready(&self) -> bool {
        self.workload.is_ready()
    }

    fn secures_mesh(&self) -> bool {
        self.workload.is_ready() || self.progress.is_required.load(Ordering::Relaxed)
    }

    fn problem(&self) -> Option<String> {
        self.progress.problem.borrow().clone()
    }

    fn require(&self) {
        self.progress.is_required.store(true, Ordering::Relaxed);
    }

    fn id(&self) -> Option<SpiffeId> {
        self.workload.id()
    }

    /// Signs calls through a replica, and all other calls too if `states_calls` is set. No signature is needed where
    /// an agent vouches for the programs of its machine, or where a control plane sees the caller itself. A gateway's
    /// load report is always signed, because agents do not vouch for it.
    fn sign_call(&self, call: StatedCall<'_>, peer: &Identity) -> Option<Vec<u8>> {
        let is_replica =
            matches!(peer, Identity::Spiffe(SpiffeId { path: SpiffePath::Mesh(MeshRole::Replica, _), .. }));
        let is_stated = is_replica || self.states_calls || call.path == REPORT_GATEWAY;
        if is_stated { self.workload.state_call(call) } else { None }
    }

    fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        self.workload.verify_call(statement, call)
    }

    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.workload.revocation_changes())
    }

    fn close(&self) -> Closed {
        self.following.stop.cancel();
        Box::pin(self.following.ended.clone().cancelled_owned())
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        self.workload.connect(peer, stream)
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.workload.accept(stream)
    }

    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake {
        self.workload.accept_federated(stream, callers)
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.workload.accept_joining(stream)
    }
}
