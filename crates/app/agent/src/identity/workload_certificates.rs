//! Certificates for programs of this machine: those of the agent's own user, and those selected by a record. The same rule
//! decides for whom the agent forwards writes (`authorization.rs`).

use bytes::Bytes;
use fairmesh_identity::{IdentityError, PrivateKey};
use fairmesh_model::{Identity, Invalid, Label, MeshRole, ProgramFacts, ServiceName, SpiffeId, SpiffePath};
use fairmesh_wire::{
    LogLimiter, identity_of, program_of,
    v1::{self, workload_server},
};
use tonic::{Code, Request, Response, Status};

use super::{AgentIdentity, Shared};

/// The service `Workload`.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadService {
    /// `None` if this agent cannot have an identity.
    pub(crate) identity: Option<AgentIdentity>,
}

#[tonic::async_trait]
impl workload_server::Workload for WorkloadService {
    async fn issue_workload(
        &self,
        request: Request<v1::IssueWorkloadRequest>,
    ) -> Result<Response<v1::IssueWorkloadResponse>, Status> {
        let no_certificate =
            |undecided| Ok(Response::new(v1::IssueWorkloadResponse { undecided, ..Default::default() }));
        let Some(AgentIdentity { shared }) = &self.identity else { return no_certificate(false) };
        match shared.is_member().await {
            Some(true) => {}
            known => return no_certificate(known.is_none()),
        }
        let uid = local_user(&identity_of(&request))?;
        let program = program_of(&request).cloned();
        let v1::IssueWorkloadRequest { path, csr } = request.into_inner();
        // Programs send an empty request to find out whether this agent is a member, before they make a key.
        if csr.is_empty() {
            return Err(Status::invalid_argument("the signing request is missing"));
        }
        let path = requested_path(&path, &shared.name, uid)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        tracing::debug!(%path, uid, "a program asks for a certificate");
        if !is_own_user(uid) {
            let selected = shared.check_selected(&path, program.as_ref(), &csr).await;
            selected.inspect_err(|status| log_refusal(&path, status))?;
        }
        shared.check_not_revoked(&path).inspect_err(|status| log_refusal(&path, status))?;
        let certified = shared.issue(path, csr.to_vec()).await?;
        let chain = certified.chain.iter().map(|one| Bytes::copy_from_slice(one)).collect();
        let bundle = Some(certified.bundle.into());
        Ok(Response::new(v1::IssueWorkloadResponse { chain, bundle, undecided: false }))
    }
}

/// Returns the user who runs a program on this machine.
pub(super) fn local_user(peer: &Identity) -> Result<u32, Status> {
    match peer {
        Identity::Local { uid } => Ok(*uid),
        peer => Err(Status::permission_denied(format!(
            "this agent issues certificates over its Unix socket only, not to {peer}"
        ))),
    }
}

fn log_refusal(path: &SpiffePath, refused: &Status) {
    if refused.code() == Code::PermissionDenied {
        static REFUSED: LogLimiter = LogLimiter::new();
        if let Some(suppressed) = REFUSED.next() {
            let problem = refused.message();
            tracing::warn!(%path, problem, suppressed, "a program is refused a certificate");
        }
    }
}

/// Whether this agent vouches for every program of a user: true for its own user and root.
pub(crate) fn is_own_user(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl AgentIdentity {
    /// Whether this agent is a member of a trust domain. `None` if this is not known in time.
    pub(crate) async fn is_member(&self) -> Option<bool> {
        self.shared.is_member().await
    }

    /// Whether this agent would issue a service's identity to a program of another user.
    ///
    /// # Errors
    /// Why not; `Unavailable` while no control plane answers.
    pub(crate) async fn check_program(
        &self,
        service: &ServiceName,
        program: &ProgramFacts,
    ) -> Result<(), Status> {
        let failed = |error: IdentityError| Status::internal(error.to_string());
        // The key is never certified; it only binds the response to this request.
        let csr = PrivateKey::generate().and_then(|key| key.signing_request()).map_err(failed)?;
        self.shared.check_selected(&SpiffePath::Service(service.clone()), Some(program), &csr).await
    }

    /// The identities of a program of another user that are not revoked, at least one.
    ///
    /// # Errors
    /// As for [`check_program`](Self::check_program).
    pub(crate) async fn identities_of(&self, program: &ProgramFacts) -> Result<Vec<SpiffeId>, Status> {
        let own =
            self.shared.workload.id().ok_or_else(|| Status::unavailable(self.shared.no_certificate()))?;
        let paths = self.shared.identities_of(program).await?;
        Ok(paths.into_iter().map(|path| SpiffeId { domain: own.domain.clone(), path }).collect())
    }

    /// Whether an identity is still issued.
    ///
    /// # Errors
    /// When the identity is revoked.
    pub(crate) fn check_not_revoked(&self, path: &SpiffePath) -> Result<(), Status> {
        self.shared.check_not_revoked(path)
    }
}

impl Shared {
    fn check_not_revoked(&self, path: &SpiffePath) -> Result<(), Status> {
        match self.workload.revocations().current().revokes_identity(path) {
            false => Ok(()),
            true => Err(Status::permission_denied(format!(
                "the identity {path} is revoked; an operator can restore it with `fairmesh identity restore {path}`"
            ))),
        }
    }

    /// Whether a record selects this program of another user.
    async fn check_selected(
        &self,
        path: &SpiffePath,
        program: Option<&ProgramFacts>,
        csr: &[u8],
    ) -> Result<(), Status> {
        let refused = |problem: String| Err(Status::permission_denied(problem));
        let Some(program) = program else {
            return refused("the kernel does not say which program this is".into());
        };
        let SpiffePath::Service(service) = path else {
            return refused(format!(
                "the agent {} gives {path} only to programs of its own user and of root; name the service that this \
                 program ({program}) is",
                self.name
            ));
        };
        let kind = "kind: Workload";
        let Some(entry) = self.workload_of(service, csr.to_vec()).await? else {
            let ProgramFacts { uid, .. } = program;
            return refused(format!(
                "no {kind} says which programs of other users than the agent's may be {service}; apply one, such as \
                 {{{kind}, service: {service}, programs: [{{uid: {uid}}}]}}"
            ));
        };
        entry.check(program).or_else(|problem| {
            refused(format!(
                "the {kind} of {service} does not select this program ({program}): {problem}; apply one that does"
            ))
        })
    }
}

/// Parses the identity that a program asks for. An empty path means an operator, named after machine and user. Proxies,
/// gateways, replicas and operators are named after the machine.
pub(super) fn requested_path(path: &str, agent: &Label, uid: u32) -> Result<SpiffePath, Invalid> {
    if path.is_empty() {
        return Ok(SpiffePath::Mesh(MeshRole::Operator, Label::new(format!("{agent}.uid-{uid}"))?));
    }
    match path.parse()? {
        SpiffePath::Mesh(
            role @ (MeshRole::Proxy
            | MeshRole::KeyServer
            | MeshRole::Gateway
            | MeshRole::Operator
            | MeshRole::Replica),
            name,
        ) => Ok(SpiffePath::Mesh(role, Label::new(format!("{agent}.{name}"))?)),
        path => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_and_operator_certificate_names_begin_with_machine_name() {
        let agent = Label::new("web-1").unwrap();
        for (asked, path) in [
            ("", "fairmesh/operator/web-1.uid-7"),
            ("fairmesh/proxy/edge", "fairmesh/proxy/web-1.edge"),
            ("fairmesh/replica/eu", "fairmesh/replica/web-1.eu"),
            ("fairmesh/keyserver/edge", "fairmesh/keyserver/web-1.edge"),
            ("fairmesh/gateway/edge", "fairmesh/gateway/web-1.edge"),
            ("shop/cart", "shop/cart"),
            ("fairmesh/control/x", "fairmesh/control/x"),
        ] {
            assert_eq!(requested_path(asked, &agent, 7).unwrap().to_string(), path);
        }
        assert!(requested_path("fairmesh/root/x", &agent, 7).is_err());
    }

    #[test]
    fn programs_are_identified_only_on_unix_socket() {
        let own = rustix::process::geteuid().as_raw();
        assert!(is_own_user(own) && is_own_user(0) && !is_own_user(own + 1));
        assert_eq!(local_user(&Identity::Local { uid: 7 }).unwrap(), 7);
        assert!(local_user(&Identity::Anonymous).is_err());
    }
}
