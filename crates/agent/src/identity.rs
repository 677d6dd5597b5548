//! The identity of this agent, and certificates for the programs of its machine.
//!
//! An agent is a member of the trust domain from its join on: with a token, or over the Unix socket of a control plane on
//! its machine. It keeps its certificate on disk, so that a restart needs no other token.

mod source;
mod workloads;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fairmesh_identity::{Credentials, IdentityError, JoinToken, Workload, renewal};
use fairmesh_model::{Invalid, Label, MeshRole, SpiffePath};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_wire::transport::TlsIdentity as _;
use tokio_util::sync::CancellationToken;

use source::ControlSource;
pub(crate) use workloads::WorkloadService;

/// The folder of the agent's key and certificate within the state directory.
const FOLDER: &str = "identity";

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
    folder: PathBuf,
    /// Whether this agent is, or is about to become, a member. Not while there is no way in.
    is_member: AtomicBool,
}

impl AgentIdentity {
    /// Reads the certificate that was kept. `name` is that of the agent.
    ///
    /// # Errors
    /// When a token is given and the name cannot be in an id.
    pub(crate) fn open(
        name: &str,
        state_dir: &Path,
        token: Option<JoinToken>,
        (workload, upstream): (Arc<Workload>, FollowerHandle),
    ) -> Result<Option<Self>, Invalid> {
        let name = match Label::new(name.to_ascii_lowercase()) {
            Ok(name) => name,
            Err(error) if token.is_some() => return Err(error.within("name")),
            Err(error) => {
                tracing::debug!(%error, "this agent cannot have an identity");
                return Ok(None);
            }
        };
        let folder = state_dir.join(FOLDER);
        let kept = Credentials::load(&folder, workload.now()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the certificate of this agent on disk cannot be used");
            None
        });
        let kept = kept.filter(|kept| kept.id().path == own_path(&name)).map(|kept| workload.install(kept));
        if let Some(Err(error)) = kept {
            tracing::warn!(%error, "the certificate of this agent on disk cannot be used");
        }
        let is_member = AtomicBool::new(token.is_some() || workload.is_ready());
        Ok(Some(Self { shared: Arc::new(Shared { workload, name, upstream, token, folder, is_member }) }))
    }

    /// Joins, and renews the certificate, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let source = ControlSource { shared: Arc::clone(&self.shared) };
        renewal::keep_fresh(Arc::clone(&self.shared.workload), source, stop).await;
    }

    /// When the certificate expires, since 1970; zero without one.
    pub(crate) fn expires_at(&self) -> Duration {
        self.shared.workload.credentials().map_or(Duration::ZERO, |own| own.validity().1)
    }
}

impl Shared {
    fn is_member(&self) -> bool {
        self.is_member.load(Ordering::Relaxed)
    }

    fn set_member(&self, is_member: bool) {
        self.is_member.store(is_member, Ordering::Relaxed);
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
