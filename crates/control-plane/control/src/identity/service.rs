//! Issues certificates to agents, to programs that agents vouch for, and to programs that joined on their
//! own.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_identity::{
    CLOCK_SKEW, Joining, TokenGrant, TokenRefused, renews_itself,
    signed_message::{self, Purpose},
};
use fairmesh_model::{
    Identity, JoinedAgent, Label, MeshRole, Prefix, ProgramFacts, Record, RecordKey, Region, ServiceName,
    SpiffeId, SpiffePath, Tenant, WorkloadEntry,
};
use fairmesh_rib::{
    Batch, Node, Op,
    access::{AccessControl, WorkloadIndex},
};
use fairmesh_store::Store;
use fairmesh_wire::{
    LogLimiter, identity_of, on_behalf_of, record_encoding,
    v1::{self, identity_server},
};
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{CertificateIssuer, failed, no_domain};
use crate::{audit::AuditLog, store_error::write_error};

/// Maximum age of a signed request, not counting clock skew.
const MAX_AGE: Duration = Duration::from_secs(60);

static REFUSED: LogLimiter = LogLimiter::new();

/// Maximum number of services whose identities one program gets by the selectors that it matches.
const MAX_SELECTED: usize = 64;

/// The services `Identity` and `Authority`.
#[derive(Clone, Debug)]
pub(crate) struct IdentityService {
    pub(crate) issuer: Option<Arc<CertificateIssuer>>,
    pub(crate) node: Node,
    pub(crate) store: Arc<dyn Store>,
    /// Decides which agent vouches for which process.
    pub(crate) access: AccessControl,
    /// Index of workload selectors: which programs may have which identity.
    pub(crate) selectors: WorkloadIndex,
    pub(crate) audit: AuditLog,
}

#[tonic::async_trait]
impl identity_server::Identity for IdentityService {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::SignedMessage>, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        let is_local = is_own_user(&request);
        let v1::JoinRequest { agent, csr, token, proof, region, service } = request.into_inner();
        if !service.is_empty() {
            return self.join_program(&service, &csr, (&token, &proof)).map(Response::new);
        }
        // Checked before the token is used up.
        let agent = Label::new(agent).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let recorded = Some(region.clone()).filter(|region| !region.is_empty()).map(Region::new).transpose();
        let recorded = recorded.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.refuse_revoked(issuer, &SpiffePath::Mesh(MeshRole::Agent, agent.clone()))?;
        let tenants = if token.is_empty() {
            if !is_local {
                return Err(Status::permission_denied(
                    "an agent joins with a token, or over the Unix socket of its control plane as the same user; make a \
                     token with `fairmesh identity token` on the control plane's machine",
                ));
            }
            self.refuse_second(&agent, &region)?;
            Vec::new()
        } else {
            let joining = (&Joining::Agent(agent.clone()), &region[..], &csr[..]);
            // Only the holder of a valid token learns of another agent, and the token stays usable.
            if issuer.tokens.verify(&token, joining, &proof).is_ok() {
                self.refuse_second(&agent, &region)?;
            }
            redeem(issuer, &token, joining, &proof)?.tenants
        };
        tracing::info!(%agent, "an agent joins");
        self.record(&agent, tenants, recorded).await?;
        self.certify(&csr, SpiffePath::Mesh(MeshRole::Agent, agent), false).map(Response::new)
    }

    async fn issue(
        &self,
        request: Request<v1::SignedMessage>,
    ) -> Result<Response<v1::SignedMessage>, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        let message = request.into_inner();
        let trust = issuer.trust(&self.node).map_err(|error| failed(&error))?;
        let now = issuer.clock.now();
        let signer = signed_message::verify(&trust, Purpose::IssueRequest, b"", &message, now)
            .map_err(|refused| Status::unauthenticated(refused.to_string()))?;
        let v1::IssueRequest { path, csr, signed_at, describe_workload, select_for, jwt_audience } =
            v1::IssueRequest::decode(message.payload)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if now.abs_diff(Duration::from_secs(signed_at)) > CLOCK_SKEW + MAX_AGE {
            return Err(Status::unauthenticated(
                "the request was signed at another time; check the clocks of both machines",
            ));
        }
        if let Some(program) = select_for {
            return self.select_for(&csr, &signer, &program.into()).map(Response::new);
        }
        let path: SpiffePath = path
            .parse()
            .map_err(|error: fairmesh_model::Invalid| Status::invalid_argument(error.to_string()))?;
        let joined = signer.path == path && message.chain.first().is_some_and(|own| renews_itself(own));
        if !joined {
            self.check_vouches(&signer, &path)?;
        }
        if describe_workload {
            return self.describe_workload(&csr, &path).map(Response::new);
        }
        tracing::debug!(%signer, %path, "issuing a certificate or a JWT-SVID");
        if !jwt_audience.is_empty() {
            return self.issue_jwt(&csr, &path, &jwt_audience).map(Response::new);
        }
        self.certify(&csr, path, joined).map(Response::new)
    }
}

impl IdentityService {
    /// Issues the first certificate of a program without an agent. The token authorizes the certificate, regardless
    /// of what agents may vouch for.
    fn join_program(
        &self,
        service: &str,
        csr: &[u8],
        (token, proof): (&[u8], &[u8]),
    ) -> Result<v1::SignedMessage, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        let service =
            ServiceName::new(service).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let path = SpiffePath::Service(service.clone());
        // Checked before the token is used up.
        self.refuse_revoked(issuer, &path)?;
        redeem(issuer, token, (&Joining::Service(service), "", csr), proof)?;
        tracing::info!(%path, "a program joins without an agent");
        self.certify(csr, path, true)
    }

    /// Records a joined agent, which allows the agent to request certificates.
    async fn record(
        &self,
        agent: &Label,
        tenants: Vec<Tenant>,
        region: Option<Region>,
    ) -> Result<(), Status> {
        let joined = self.issuer.as_ref().map_or(0, |issuer| issuer.clock.now().as_secs());
        let record = Record::JoinedAgent(JoinedAgent { tenants, joined, region });
        let key = RecordKey::JoinedAgent(agent.clone()).to_string();
        if self.node.get(&key).is_some() {
            tracing::warn!(
                %agent,
                "an agent of this name has joined before: unless it was set up anew, two agents share one identity; give one another \
                 --name"
            );
        }
        let op = Op::put(key, record_encoding::encode(&record));
        self.store.write(Batch { ops: vec![op] }).await.map_err(write_error)?;
        Ok(())
    }

    /// Refuses to move an agent to another region while an agent of its name follows this control plane from the recorded
    /// one: the record would be overwritten, and the reports of the first agent refused.
    fn refuse_second(&self, agent: &Label, region: &str) -> Result<(), Status> {
        let recorded = self.record_of(agent).and_then(|joined| joined.region);
        let Some(recorded) = recorded.filter(|recorded| recorded.as_str() != region) else { return Ok(()) };
        let path = SpiffePath::Mesh(MeshRole::Agent, agent.clone());
        let lives = self.node.watchers(&Prefix::everything()).into_iter().any(|watcher| {
            // An agent that was restarted for the other region follows as well, with its former certificate.
            watcher.peer.is_some_and(|peer| peer.region.as_ref() == Some(&recorded))
                && matches!(&watcher.identity, Identity::Spiffe(id) if id.path == path)
        });
        if !lives {
            return Ok(());
        }
        tracing::warn!(%agent, %recorded, region, "an agent may not join: one of its name runs in another region");
        Err(Status::already_exists(format!(
            "an agent {agent} runs in the region {recorded}, and this one joins in {region}: give this one another --name; or \
             if the agent has moved, stop the one in {recorded} first"
        )))
    }

    /// Checks that an agent may request this certificate. It may request:
    /// - its own certificate;
    /// - a certificate for a service of its tenants;
    /// - a certificate for a proxy, gateway, replica or operator on its machine.
    fn check_vouches(&self, signer: &SpiffeId, path: &SpiffePath) -> Result<(), Status> {
        let refused =
            || Err(Status::permission_denied(format!("{signer} may not have a certificate for {path}")));
        let Some((agent, joined)) = self.joined(signer) else { return refused() };
        let may = match path {
            SpiffePath::Service(service) => {
                if let Some(entry) = self.workload(service)?
                    && !entry.permits_agent(agent)
                {
                    return Err(Status::permission_denied(format!(
                        "the workload of {service} names other agents than {agent}; add it to its agents with `fairmesh apply`"
                    )));
                }
                joined.vouches_for(&service.tenant)
            }
            SpiffePath::Mesh(MeshRole::Agent, name) => name == agent,
            // Replicas and gateways need an agent of all tenants: a replica reads everything, and a gateway
            // reaches the pods of every tenant.
            SpiffePath::Mesh(MeshRole::Replica | MeshRole::Gateway, name) => {
                joined.tenants.is_empty() && self.vouches(agent, name)
            }
            SpiffePath::Mesh(MeshRole::Proxy | MeshRole::KeyServer | MeshRole::Operator, name) => {
                self.vouches(agent, name)
            }
            SpiffePath::Mesh(MeshRole::Control, _) => false,
        };
        if may { Ok(()) } else { refused() }
    }

    /// The agent that signed a request, with its record.
    fn joined<'a>(&self, signer: &'a SpiffeId) -> Option<(&'a Label, JoinedAgent)> {
        let SpiffePath::Mesh(MeshRole::Agent, agent) = &signer.path else { return None };
        Some((agent, self.record_of(agent)?))
    }

    fn record_of(&self, agent: &Label) -> Option<JoinedAgent> {
        let key = RecordKey::JoinedAgent(agent.clone());
        let entry = self.node.get(&key.to_string())?;
        match record_encoding::decode(&key, &entry.value) {
            Ok(Record::JoinedAgent(joined)) => Some(joined),
            _ => None,
        }
    }

    /// Returns a signed response with the services of a program on an agent's machine.
    fn select_for(
        &self,
        csr: &[u8],
        signer: &SpiffeId,
        program: &ProgramFacts,
    ) -> Result<v1::SignedMessage, Status> {
        let Some((agent, joined)) = self.joined(signer) else {
            return Err(Status::permission_denied(format!("{signer} vouches for no programs")));
        };
        let selected = self.selectors.select((agent, &joined.tenants), program, MAX_SELECTED);
        let services = selected.iter().map(ToString::to_string).collect();
        self.sign(csr, v1::IssueResponse { services, ..Default::default() })
    }

    /// Whether a process of this name belongs to the agent's machine.
    fn vouches(&self, agent: &Label, name: &Label) -> bool {
        self.access.agent_of(name).is_some_and(|(found, _)| found == *agent)
    }

    /// Returns a signed response with a certificate. If `joined`, the program may renew the certificate by itself.
    fn certify(&self, csr: &[u8], path: SpiffePath, joined: bool) -> Result<v1::SignedMessage, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        self.refuse_revoked(issuer, &path)?;
        let bundle = issuer.bundle(&self.node);
        let id = path.within(&bundle.domain);
        let now = issuer.clock.now();
        let issued = match joined {
            true => issuer.authority.issue_to_joined(csr, &id, now),
            false => issuer.authority.issue(csr, &id, now),
        };
        let issued = issued.map_err(|error| failed(&error))?;
        self.audit.note_certificate(id.to_string());
        let chain = issued.chain.iter().map(|one| Bytes::copy_from_slice(one)).collect();
        self.sign(csr, v1::IssueResponse { chain, bundle: Some(bundle.into()), ..Default::default() })
    }

    /// Returns a signed response with a JWT-SVID, for an identity for which a certificate would be issued.
    fn issue_jwt(&self, csr: &[u8], path: &SpiffePath, to: &[String]) -> Result<v1::SignedMessage, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        self.refuse_revoked(issuer, path)?;
        // Libraries verify tokens by themselves and know of no revocation, so a token is given only while the revocations of
        // identities are known.
        let known = issuer.workload.revocations().check_token(path, u64::MAX);
        known.map_err(|refused| Status::failed_precondition(refused.to_string()))?;
        let id = path.clone().within(&issuer.bundle(&self.node).domain);
        let issued = issuer.authority.issue_jwt(&id, to, issuer.clock.now());
        let (jwt, jwt_expires_at) = issued.map_err(|error| failed(&error))?;
        self.sign(csr, v1::IssueResponse { jwt, jwt_expires_at, ..Default::default() })
    }

    /// Refuses certificates for an identity that is revoked entirely.
    fn refuse_revoked(&self, issuer: &CertificateIssuer, path: &SpiffePath) -> Result<(), Status> {
        issuer.apply_revocations(&self.node);
        if !issuer.workload.revocations().current().revokes_identity(path) {
            return Ok(());
        }
        // A program may ask again and again.
        static REVOKED: LogLimiter = LogLimiter::new();
        if let Some(left_out) = REVOKED.next() {
            tracing::warn!(%path, left_out, "a certificate or JWT-SVID was refused: the identity is revoked");
        }
        Err(Status::permission_denied(format!(
            "the identity {path} is revoked; an operator can restore it with `fairmesh identity restore {path}`"
        )))
    }

    /// Returns a signed response with the programs that may have an identity, and the roots.
    fn describe_workload(&self, csr: &[u8], path: &SpiffePath) -> Result<v1::SignedMessage, Status> {
        let entry = match path {
            SpiffePath::Service(service) => self.workload(service)?,
            SpiffePath::Mesh(..) => None,
        };
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        let bundle = Some(issuer.bundle(&self.node).into());
        self.sign(csr, v1::IssueResponse { workload: entry.map(Into::into), bundle, ..Default::default() })
    }

    /// Which agents and programs may have a service's identity; `None` without such a record.
    fn workload(&self, service: &ServiceName) -> Result<Option<WorkloadEntry>, Status> {
        let key = RecordKey::Workload(service.clone());
        let Some(entry) = self.node.get(&key.to_string()) else { return Ok(None) };
        match record_encoding::decode(&key, &entry.value) {
            Ok(Record::Workload(entry)) => Ok(Some(entry)),
            // Without the record, more agents and programs may have the identity.
            Ok(_) | Err(_) => Err(Status::failed_precondition(format!(
                "the workload of {service} cannot be read, so no agent vouches for it; upgrade this control plane, or write the \
                 workload again with `fairmesh apply`"
            ))),
        }
    }

    /// Signs the response to the request with this `csr`.
    fn sign(&self, csr: &[u8], response: v1::IssueResponse) -> Result<v1::SignedMessage, Status> {
        let issuer = self.issuer.as_ref().ok_or_else(no_domain)?;
        let own = issuer.own(&self.node).map_err(|error| failed(&error))?;
        signed_message::sign(&own, Purpose::IssueResponse, csr, response.encode_to_vec())
            .map_err(|error| failed(&error))
    }
}

fn redeem(
    issuer: &CertificateIssuer,
    token: &[u8],
    joining: (&Joining, &str, &[u8]),
    proof: &[u8],
) -> Result<TokenGrant, Status> {
    issuer.tokens.redeem(token, joining, proof, issuer.clock.now()).map_err(|refused| match refused {
        TokenRefused::Failed(error) => failed(&error),
        refused => {
            if let Some(left_out) = REFUSED.next() {
                tracing::warn!(joining = %joining.0, %refused, left_out, "a join token was refused");
            }
            Status::permission_denied(refused.to_string())
        }
    })
}

/// Whether a call comes over a Unix socket from the user of this process or from root, and was not forwarded
/// by another process.
pub(super) fn is_own_user<T>(request: &Request<T>) -> bool {
    is_own(&identity_of(request)) && on_behalf_of(request).is_empty()
}

/// Whether a peer is the user of this process or root.
pub(crate) fn is_own(peer: &Identity) -> bool {
    let own = rustix::process::geteuid().as_raw();
    matches!(peer, Identity::Local { uid } if *uid == own || *uid == 0)
}
