//! The identity of this agent, and certificates for the programs of its machine.
//!
//! An agent becomes a member of the trust domain when it joins: with a token, or over the Unix socket of a control plane
//! on its machine. It saves its certificate on disk, so that a restart needs no other token.

mod certificate_source;
mod jwt_svids;
mod recorded_region;
mod saved_certificate;
mod workload_api;
mod workload_certificates;

use std::{
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fairmesh_identity::{
    Credentials, IdentityError, JoinToken, Member, RevocationSource, Workload, WorkloadApi, follow_bundle,
    follow_revocations, renewal, sha256,
};
use fairmesh_model::{Invalid, Label, MeshRole, Region, SpiffePath};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_wire::transport::{Address, TlsIdentity as _, Transport};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use certificate_source::ControlSource;
use jwt_svids::JwtSvids;
pub(crate) use workload_api::SpiffeService;
pub(crate) use workload_certificates::{WorkloadService, is_own_user};

use crate::{AgentConfig, description};

/// Directory of the agent's key and certificate within the state directory.
const FOLDER: &str = "identity";
/// Time for which a program waits until a starting agent knows whether there is a trust domain.
const KNOWN_TIMEOUT: Duration = Duration::from_millis(800);
/// Time over which the agents of a mesh spread their requests for changed roots.
const ROOTS_SPREAD: Duration = Duration::from_secs(10);
/// Approximate pause of an agent that got no response.
const ROOTS_RETRY: Duration = Duration::from_secs(30);

/// This agent's membership of the trust domain.
#[derive(Clone, Debug)]
pub(crate) struct AgentIdentity {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workload: Arc<Workload>,
    name: Label,
    /// Region for which this agent reports.
    region: Region,
    /// Reason why the saved certificate could not be used.
    unusable: Option<String>,
    upstream: FollowerHandle,
    token: Option<JoinToken>,
    /// The Workload API from which this agent gets its certificate instead of the control plane.
    workload_api: Option<WorkloadApi>,
    /// The control planes or replicas, and the transport to them.
    control_planes: (Transport, Vec<Address>),
    /// The transport used for joining.
    joining: Transport,
    folder: PathBuf,
    /// This agent's own copy of the revocation records. The agent reads its copy like a program, so that the records
    /// are subscribed and saved on disk.
    own_copy: RevocationSource,
    /// Whether this agent is a member of the trust domain or about to become one; false while it cannot join. `None`
    /// until a control plane was reached, since the mesh may have no trust domain.
    is_member: watch::Sender<Option<bool>>,
    /// Why control planes refuse this agent, which never joined, and what to do; empty unless they do.
    refusal: OnceLock<String>,
    /// Time at which the agent last joined.
    joined_at: Mutex<Option<Instant>>,
    jwt: JwtSvids,
}

/// Identity of an agent as loaded at startup.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Name of the agent in SPIFFE IDs.
    name: Label,
    /// Reason why the certificate on disk is unusable, if it is. The agent was then a member of a trust domain and
    /// does not return to plaintext.
    unusable: Option<String>,
}

impl Kept {
    /// Whether connections must be secure although there is no certificate.
    pub(crate) fn is_unusable(&self) -> bool {
        self.unusable.is_some()
    }
}

/// Reads the saved certificate. `None` if the agent cannot have an identity.
///
/// # Errors
/// When a token is given, but the agent's name cannot be part of an id.
pub(crate) fn load(config: &AgentConfig, workload: &Workload) -> Result<Option<Kept>, Invalid> {
    let name = match Label::new(config.name.to_ascii_lowercase()) {
        Ok(name) => name,
        Err(error) if config.join_token.is_some() || config.workload_api.is_some() => {
            return Err(error.within("name"));
        }
        Err(error) => {
            tracing::debug!(%error, "this agent cannot have an identity");
            return Ok(None);
        }
    };
    if config.workload_api.is_some() {
        return Ok(Some(Kept { name, unusable: None }));
    }
    let usable = match Credentials::load(&config.state_dir.join(FOLDER), workload.now()) {
        Ok(None) => Ok(()),
        Ok(Some(kept)) if kept.id().path != own_path(&name) => Err(format!("it is that of {}", kept.id())),
        Ok(Some(kept)) => workload.install(kept).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = &usable {
        tracing::warn!(error, "the certificate of this agent on disk cannot be used; it has to join again");
    }
    Ok(Some(Kept { name, unusable: usable.err() }))
}

impl AgentIdentity {
    /// The identity of an agent. `workload` holds the saved certificate if it is valid.
    pub(crate) fn new(
        config: &AgentConfig,
        kept: Kept,
        workload: Arc<Workload>,
        (upstream, transport): (FollowerHandle, Transport),
    ) -> Self {
        let token = config.join_token.clone();
        let folder = config.state_dir.join(FOLDER);
        let Kept { name, unusable } = kept;
        let workload_api = config.workload_api.clone();
        let workload_api = workload_api.map(|socket| WorkloadApi { socket, path: Some(own_path(&name)) });
        let has_way = token.is_some() || workload_api.is_some() || workload.is_ready();
        let is_member = has_way || unusable.is_some();
        let is_member = watch::Sender::new(is_member.then_some(true));
        let own_copy = RevocationSource {
            addresses: vec![config.listen.clone()],
            transport: transport.clone(),
            software: format!("agent {name}"),
            // A Workload API provides its own roots.
            with_roots: workload_api.is_none(),
        };
        let joining = joining_transport(config, &transport);
        let control_planes = (transport, config.upstreams.clone());
        let region = config.location.region.clone();
        let shared = Shared {
            workload,
            name,
            region,
            unusable,
            upstream,
            token,
            workload_api,
            control_planes,
            joining,
            folder,
            own_copy,
            is_member,
            refusal: OnceLock::new(),
            joined_at: Mutex::default(),
            jwt: JwtSvids::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Why control planes refuse this agent, which never joined, and what to do.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.shared.refusal.get().map(String::as_str)
    }

    /// Time at which the certificate expires, since the Unix epoch; zero without a certificate.
    pub(crate) fn expires_at(&self) -> Duration {
        self.shared.workload.credentials().map_or(Duration::ZERO, |own| own.validity().1)
    }
}

/// Joins, renews the certificate, and follows revocations, until `stop`.
pub(crate) async fn keep_fresh(identity: Option<AgentIdentity>, stop: CancellationToken) {
    let Some(AgentIdentity { shared }) = identity else { return };
    if let Some(api) = shared.workload_api.clone() {
        return follow_workload_api(&shared, api, stop).await;
    }
    let source = ControlSource { shared: Arc::clone(&shared) };
    let revocations = follow_revocations(Arc::clone(&shared.workload), shared.own_copy.clone());
    let renewing = renewal::keep_fresh(Arc::clone(&shared.workload), source, stop);
    let trying = shared.has_to_try_kept();
    let tried = async {
        if trying {
            shared.try_kept().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = renewing => {}
        () = tried => {}
        () = revocations => {}
        () = follow_bundle(&shared.workload, &shared.folder) => {}
        () = follow_roots(&shared) => {}
        () = tell_roots(&shared) => {}
        () = shared.follow_recorded_region() => {}
        () = connect_with_new(&shared) => {}
    }
}

/// Connects to the upstream as soon as there is a new certificate, instead of waiting for the end of the pause after
/// a refusal. Never returns.
async fn connect_with_new(shared: &Shared) {
    let mut changes = shared.workload.installations();
    // The sender lives in the identity, which this borrows.
    while changes.changed().await.is_ok() {
        shared.upstream.retry();
    }
}

/// Reports to the upstream the roots that this agent trusts, for operators who rotate them. Never returns.
async fn tell_roots(shared: &Shared) {
    let mut changes = shared.workload.installations();
    loop {
        changes.mark_unchanged();
        if let Some(own) = shared.workload.credentials() {
            let roots = own.trust().bundle().roots.iter().map(|root| sha256(root)).collect();
            shared.upstream.set_peer_info(description(&shared.region, roots));
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Updates the trusted roots of the domain soon after they change, not only at the next renewal. Never returns.
async fn follow_roots(shared: &Shared) {
    let mut changes = shared.workload.root_changes();
    // The sender lives in the identity, which this borrows.
    while changes.changed().await.is_ok() {
        let mut pause = below(ROOTS_SPREAD);
        loop {
            sleep(pause).await;
            changes.mark_unchanged();
            match shared.refresh_roots().await {
                Ok(()) => break,
                Err(status) => {
                    let reason = status.message();
                    tracing::warn!(reason, "the new roots of the trust domain are not known yet");
                    // A control plane of the previous release does not report them; the next renewal does.
                    if status.code() != Code::Unavailable {
                        break;
                    }
                }
            }
            pause = ROOTS_RETRY + below(ROOTS_RETRY);
        }
    }
}

/// A random time below `range`, so that a fleet does not act in step.
fn below(range: Duration) -> Duration {
    // Less than 1000; the standard library's hash seeds are random enough.
    range / 1000 * (RandomState::new().hash_one(()) % 1000) as u32
}

/// Renews an agent's certificate from a Workload API. The agent must still join once, which permits it to vouch for
/// programs.
async fn follow_workload_api(shared: &Arc<Shared>, api: WorkloadApi, stop: CancellationToken) {
    let revocations = follow_revocations(Arc::clone(&shared.workload), shared.own_copy.clone());
    tokio::select! {
        () = stop.cancelled() => {}
        () = api.follow(Arc::clone(&shared.workload), |_| ()) => {}
        () = async {
            tokio::join!(
                shared.enroll(),
                revocations,
                tell_roots(shared),
                connect_with_new(shared),
                shared.follow_recorded_region()
            );
        } => {}
    }
}

impl Shared {
    /// Whether this agent is a member, as asked by a waiting program; `None` if this is not known in time.
    async fn is_member(&self) -> Option<bool> {
        let mut known = self.is_member.subscribe();
        let known = timeout(KNOWN_TIMEOUT, known.wait_for(Option::is_some)).await.ok()?;
        // The sender lives in `self`.
        known.ok().and_then(|known| *known)
    }

    fn set_member(&self, is_member: bool) {
        self.is_member.send_replace(Some(is_member));
    }

    /// Whether this agent was ever a member of a trust domain. If so, it never works without one again.
    fn was_member(&self) -> bool {
        self.unusable.is_some() || self.workload.is_ready()
    }

    /// Error message that explains the missing certificate and how to get one.
    fn no_certificate(&self) -> String {
        let problem = match (&self.unusable, self.workload.is_ready()) {
            (_, true) if self.workload.is_revoked() => "its certificate is revoked",
            (_, true) if self.workload_api.is_some() => {
                return "the SPIFFE Workload API of this agent has not renewed its certificate; see its log"
                    .into();
            }
            (_, true) => "the certificate of this agent has expired",
            (Some(problem), false) => problem,
            (None, false) if self.workload_api.is_some() => {
                return "this agent has no certificate of its SPIFFE Workload API yet; see its log".into();
            }
            (None, false) => return "this agent has no valid certificate yet; see its log".into(),
        };
        format!("the agent {} has to join again: {problem}; {}", self.name, self.way_in())
    }

    /// Returns instructions for an agent that cannot join.
    fn way_in(&self) -> String {
        format!(
            "make a token with `fairmesh identity token {}` on the control plane's machine, and start the agent with \
             --join-token-file; beside a control plane on this machine it needs none, with --control unix:DIR/control.sock, \
             DIR being the --data-dir of that control plane",
            self.name
        )
    }

    fn joined_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.joined_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificate, if peers still accept it.
    fn valid_credentials(&self) -> Option<Arc<Credentials>> {
        if self.workload.is_revoked() {
            return None;
        }
        self.workload.credentials().filter(|own| own.validity().1 > self.workload.now())
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        credentials.save(&self.folder)
    }
}

/// Returns the transport for joining with a token. It omits the agent's certificate, which is useless then unless it
/// comes from a Workload API.
fn joining_transport(config: &AgentConfig, transport: &Transport) -> Transport {
    match &config.join_token {
        Some(token) if !config.transport.is_tls() && config.workload_api.is_none() => {
            Transport::tls(Arc::new(Member::new(Arc::default(), Some(token.clone())))).to_upstreams()
        }
        _ => transport.clone(),
    }
}

/// Returns the identity of the agent with this name.
fn own_path(name: &Label) -> SpiffePath {
    SpiffePath::Mesh(MeshRole::Agent, name.clone())
}
