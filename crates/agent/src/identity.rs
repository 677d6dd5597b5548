//! The identity of this agent, and certificates for the programs of its machine.
//!
//! An agent is a member of the trust domain from its join on: with a token, or over the Unix socket of a control plane on
//! its machine. It keeps its certificate on disk, so that a restart needs no other token.

mod source;
mod workloads;

use std::{path::PathBuf, sync::Arc, time::Duration};

use fairmesh_identity::{Credentials, IdentityError, JoinToken, Workload, renewal};
use fairmesh_model::{Invalid, Label, MeshRole, SpiffePath};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_wire::transport::{Address, TlsIdentity as _, Transport};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use source::ControlSource;
pub(crate) use workloads::WorkloadService;

use crate::AgentConfig;

/// The folder of the agent's key and certificate within the state directory.
const FOLDER: &str = "identity";
/// How long a program waits for an agent that just started to learn whether there is a trust domain.
const KNOWN_TIMEOUT: Duration = Duration::from_millis(800);

/// This agent's part in the trust domain.
#[derive(Clone, Debug)]
pub(crate) struct AgentIdentity {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workload: Arc<Workload>,
    name: Label,
    upstream: FollowerHandle,
    token: Option<JoinToken>,
    /// Where to join with the token, and how.
    control_planes: (Transport, Vec<Address>),
    folder: PathBuf,
    /// Whether this agent is, or is about to become, a member; not while there is no way in. `None` before a control plane
    /// on this machine has said whether there is one.
    is_member: watch::Sender<Option<bool>>,
}

/// Reads the certificate that was kept. The name of this agent in ids, if it can have one.
///
/// # Errors
/// When a token is given and the name of the agent cannot be in an id.
pub(crate) fn load(config: &AgentConfig, workload: &Workload) -> Result<Option<Label>, Invalid> {
    let name = match Label::new(config.name.to_ascii_lowercase()) {
        Ok(name) => name,
        Err(error) if config.join_token.is_some() => return Err(error.within("name")),
        Err(error) => {
            tracing::debug!(%error, "this agent cannot have an identity");
            return Ok(None);
        }
    };
    let kept = Credentials::load(&config.state_dir.join(FOLDER), workload.now()).unwrap_or_else(|error| {
        tracing::warn!(%error, "the certificate of this agent on disk cannot be used");
        None
    });
    let kept = kept.filter(|kept| kept.id().path == own_path(&name)).map(|kept| workload.install(kept));
    if let Some(Err(error)) = kept {
        tracing::warn!(%error, "the certificate of this agent on disk cannot be used");
    }
    Ok(Some(name))
}

impl AgentIdentity {
    /// The identity of an agent with this name, whose certificate is in `workload` if it was kept.
    pub(crate) fn new(
        config: &AgentConfig,
        name: Label,
        workload: Arc<Workload>,
        (upstream, transport): (FollowerHandle, Transport),
    ) -> Self {
        let token = config.join_token.clone();
        let folder = config.state_dir.join(FOLDER);
        let can_ask = config.upstreams.iter().any(|upstream| matches!(upstream, Address::Unix(_)));
        let is_member = match token.is_some() || workload.is_ready() {
            true => Some(true),
            false if can_ask => None,
            false => Some(false),
        };
        let is_member = watch::Sender::new(is_member);
        let control_planes = (transport, config.upstreams.clone());
        let shared = Shared { workload, name, upstream, token, control_planes, folder, is_member };
        Self { shared: Arc::new(shared) }
    }

    /// When the certificate expires, since 1970; zero without one.
    pub(crate) fn expires_at(&self) -> Duration {
        self.shared.workload.credentials().map_or(Duration::ZERO, |own| own.validity().1)
    }
}

/// Joins, and renews the certificate, until `stop`.
pub(crate) async fn keep_fresh(identity: Option<AgentIdentity>, stop: CancellationToken) {
    let Some(AgentIdentity { shared }) = identity else { return };
    let source = ControlSource { shared: Arc::clone(&shared) };
    renewal::keep_fresh(Arc::clone(&shared.workload), source, stop).await;
}

impl Shared {
    /// Whether this agent is a member, once that is known; for a program that waits.
    async fn is_member(&self) -> bool {
        let mut known = self.is_member.subscribe();
        let waiting = known.wait_for(Option::is_some);
        // Without a response there is no domain to be a member of.
        timeout(KNOWN_TIMEOUT, waiting).await.is_ok_and(|known| known.is_ok_and(|known| *known == Some(true)))
    }

    fn set_member(&self, is_member: bool) {
        self.is_member.send_replace(Some(is_member));
    }

    /// The certificate, if it is still accepted.
    fn valid_credentials(&self) -> Option<Arc<Credentials>> {
        self.workload.credentials().filter(|own| own.validity().1 > self.workload.now())
    }

    fn save(&self, credentials: &Credentials) -> Result<(), IdentityError> {
        credentials.save(&self.folder)
    }
}

/// The identity of the agent with this name.
fn own_path(name: &Label) -> SpiffePath {
    SpiffePath::Mesh(MeshRole::Agent, name.clone())
}
