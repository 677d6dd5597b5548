//! Certificates for programs of this machine.

use bytes::Bytes;
use fairmesh_model::{Identity, Invalid, Label, MeshRole, SpiffePath};
use fairmesh_wire::{
    identity_of,
    v1::{self, workload_server},
};
use tonic::{Request, Response, Status};

use super::AgentIdentity;

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
        let no_domain = || Ok(Response::new(v1::IssueWorkloadResponse::default()));
        let Some(AgentIdentity { shared }) = &self.identity else { return no_domain() };
        if !shared.is_member().await {
            return no_domain();
        }
        let uid = permitted_user(&identity_of(&request))?;
        let v1::IssueWorkloadRequest { path, csr } = request.into_inner();
        let path = requested_path(&path, &shared.name, uid)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        tracing::debug!(%path, uid, "a program asks for a certificate");
        let certified = shared.issue(path, csr.into()).await?;
        let chain = certified.chain.iter().map(|one| Bytes::copy_from_slice(one)).collect();
        Ok(Response::new(v1::IssueWorkloadResponse { chain, bundle: Some(certified.bundle.into()) }))
    }
}

/// The user of a program for which this agent vouches: its own, and root.
fn permitted_user(peer: &Identity) -> Result<u32, Status> {
    let own = rustix::process::geteuid().as_raw();
    match peer {
        Identity::Local { uid } if *uid == own || *uid == 0 => Ok(*uid),
        peer => Err(Status::permission_denied(format!(
            "this agent issues certificates to programs of the user {own} on its machine, not to {peer}; run an agent as \
             the program's user"
        ))),
    }
}

/// The identity that a program asks for. One that names none is an operator, named after machine and user. Proxies,
/// replicas and operators are named after the machine.
fn requested_path(path: &str, agent: &Label, uid: u32) -> Result<SpiffePath, Invalid> {
    if path.is_empty() {
        return Ok(SpiffePath::Mesh(MeshRole::Operator, Label::new(format!("{agent}.uid-{uid}"))?));
    }
    match path.parse()? {
        SpiffePath::Mesh(role @ (MeshRole::Proxy | MeshRole::Operator | MeshRole::Replica), name) => {
            Ok(SpiffePath::Mesh(role, Label::new(format!("{agent}.{name}"))?))
        }
        path => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_proxies_and_operators_begin_with_the_machine() {
        let agent = Label::new("web-1").unwrap();
        for (asked, path) in [
            ("", "fairmesh/operator/web-1.uid-7"),
            ("fairmesh/proxy/edge", "fairmesh/proxy/web-1.edge"),
            ("fairmesh/replica/eu", "fairmesh/replica/web-1.eu"),
            ("shop/cart", "shop/cart"),
            ("fairmesh/control/x", "fairmesh/control/x"),
        ] {
            assert_eq!(requested_path(asked, &agent, 7).unwrap().to_string(), path);
        }
        assert!(requested_path("fairmesh/root/x", &agent, 7).is_err());
    }

    #[test]
    fn other_users_and_other_machines_get_no_certificate() {
        let own = rustix::process::geteuid().as_raw();
        assert!(permitted_user(&Identity::Local { uid: own }).is_ok());
        assert!(permitted_user(&Identity::Local { uid: own + 1 }).is_err());
        assert!(permitted_user(&Identity::Anonymous).is_err());
    }
}
