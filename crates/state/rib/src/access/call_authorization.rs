//! Authorizes gRPC calls at control planes and replicas.
//!
//! A forwarded call is authorized as a call of its original caller if it carries that caller's signed
//! [statement](STATEMENT), and otherwise as a call of the process that forwards it. Only agents vouch for programs on
//! their machine. A call that another process forwards without a statement has no rights. Otherwise a replica would
//! lend its own rights to each of its callers.

use fairmesh_model::{
    Endpoint, EndpointState, Identity, InstanceId, Label, MeshRole, Prefix, Record, RecordKey, RecordKind,
    Region, ServiceName, SpiffeId, SpiffePath, WorkloadEntry, access::Grants,
};
use fairmesh_wire::{
    ON_BEHALF_OF, RELAYED, STATEMENT, grpc_stubs::MAX_MESSAGE, record_encoding, transport::StatedCall, v1,
};
use http::HeaderMap;
use prost::Message as _;
use tonic::{Status, metadata::MetadataMap};

use super::{
    AccessControl, Caller,
    call_needs::Need,
    region_refusal,
    request_needs::{FRAME, Needs, one_message},
};

/// Maximum size of a call's body, in bytes.
pub const MAX_BODY: usize = MAX_MESSAGE + FRAME;

/// A gRPC call with its complete body.
#[derive(Clone, Copy, Debug)]
pub struct CompleteCall<'a> {
    /// Path of the method, `/package.Service/Method`.
    pub path: &'a str,
    /// Metadata of the call.
    pub headers: &'a HeaderMap,
    /// The length-prefixed message.
    pub body: &'a [u8],
}

impl AccessControl {
    /// Authorizes a call and returns its original caller. `caller` is the process at the other end of the connection,
    /// `needs` derives the required permissions from the message, and `verify` returns the signer of a statement.
    ///
    /// # Errors
    /// The refusal. Unless the original caller may read the objects in question, the text is the same as if they did
    /// not exist.
    pub fn judge(
        &self,
        caller: Caller,
        call: CompleteCall<'_>,
        needs: fn(&[u8]) -> Needs,
        verify: impl FnOnce(&[u8], StatedCall<'_>) -> Result<SpiffeId, Status>,
    ) -> Result<Caller, Status> {
        let message = one_message(call.body)?;
        let maker = maker(caller, call, message, verify)?;
        let judged = match maker.forwards_without_vouching() {
            true => Err(unstated(&maker)),
            false => self.check(&maker, &needs(message)?),
        };
        match judged {
            Ok(()) => Ok(maker),
            Err(refused) => {
                tracing::debug!(caller = %maker, method = call.path, reason = refused.message(), "call refused");
                Err(refused)
            }
        }
    }

    /// Checks that a caller has every permission in `needs`.
    ///
    /// # Errors
    /// The refusal of the first permission that the caller lacks. Unless the caller may read the object in question,
    /// the text is the same as if the object did not exist.
    pub fn check(&self, caller: &Caller, needs: &[Need]) -> Result<(), Status> {
        let grants = self.grants(caller);
        needs.iter().try_for_each(|need| self.check_one(&grants, caller, need))
    }

    pub(super) fn check_one(&self, grants: &Grants, who: &Caller, need: &Need) -> Result<(), Status> {
        let views = |service: &ServiceName| self.may_view(grants, service);
        let (admin, relays) = (grants.admin, grants.relays_reports);
        let refusal = match need {
            Need::Report if !admin && grants.machine.is_none() && grants.registrar.is_empty() => {
                for_programs(who, "sends no reports")
            }
            Need::View(service) if !views(service) => not_found(who, service),
            Need::ViewHistory(service) if !grants.may_view(service, || false) => {
                self.lacks(grants, who, (service, "viewer of its tenant"))
            }
            Need::ViewTenant(tenant) if !grants.view.includes(tenant) => {
                lacks_role(who, &format!("viewer of the tenant {tenant}"))
            }
            Need::ViewAll if !grants.view.is_everything() => lacks_role(who, "viewer of all tenants"),
            // The handler itself requires the control plane's own user, regardless of the records.
            Need::Write(RecordKey::TrustBundle | RecordKey::JoinedAgent(_)) => return Ok(()),
            Need::Write(key @ RecordKey::Workload(service)) if !grants.may_write(key) => {
                self.lacks(grants, who, (service, "admin, or operator with 'workloads' in its binding,"))
            }
            Need::Write(key) if !grants.may_write(key) => match key.service() {
                Some(service) => self.lacks(grants, who, (service, writer_role(key))),
                None => lacks_role(who, "admin"),
            },
            Need::Register(service, entry) => return self.check_workload(grants, who, (service, entry)),
            Need::Operate(service) if !grants.may_operate(service) => {
                self.lacks(grants, who, (service, "operator of its tenant"))
            }
            Need::Serve(service, instance) => return self.check_instance(grants, who, (service, instance)),
            // An agent acts for programs, but running on the agent's machine makes no program an operator.
            Need::ServeAsOperator(service, _) if !grants.may_stand_in(service) => {
                self.lacks(grants, who, (service, "operator of its tenant"))
            }
            Need::Claim(service) if !admin && !views(service) => not_found(who, service),
            // The parts of a user, who makes no calls, would be taken from those who do.
            Need::Claim(_) if !admin && grants.machine.is_none() => {
                for_programs(who, "claims no parts of limits")
            }
            Need::Check(region) if !grants.may_check(region) => check_refusal(who, region),
            Need::ReportFor(region) if !grants.reports_for(region) => {
                Status::permission_denied(region_refusal(&who.identity, region))
            }
            Need::ServeAny(service) if !relays && !grants.may_serve(service, None) => not_found(who, service),
            Need::CallFrom(service) if !relays && !admin && !views(service) => not_found(who, service),
            Need::ReportGateway if !grants.is_gateway => Status::permission_denied(format!(
                "{who} is no gateway: only one whose agent vouches for all tenants reports its load"
            )),
            Need::Admin if !admin => lacks_role(who, "admin"),
            _ => return Ok(()),
        };
        Err(refusal)
    }

    /// Checks that a caller may give a service's identity to the programs of a workload.
    fn check_workload(
        &self,
        grants: &Grants,
        who: &Caller,
        (service, entry): (&ServiceName, &WorkloadEntry),
    ) -> Result<(), Status> {
        grants.may_register(service, entry).map_err(|why| {
            Status::permission_denied(format!(
                "{who} may not give the identity {service} to these programs: {why}; see 'workloads' in `fairmesh get roles`"
            ))
        })?;
        if grants.admin {
            return Ok(());
        }
        match self.claimed_elsewhere(service, entry) {
            None => Ok(()),
            Some(Claim::Program(i)) => Err(Status::permission_denied(format!(
                "programs[{i}] of {service} may be programs of another tenant's workload; narrow it, or have an admin write it"
            ))),
            Some(Claim::Unknown(key)) => {
                tracing::warn!(caller = %who, %service, %key, "a workload is refused, since this record cannot be read");
                let is_known = key.service().is_some_and(|other| self.may_view(grants, other));
                let record = if is_known { key.to_string() } else { "a record of another tenant".to_owned() };
                Err(Status::failed_precondition(format!(
                    "whether programs of {service} belong to another tenant's workload is not known, since {record} cannot be \
                     read: have an admin write that one again, which the log of the control plane names, or this one; or \
                     name agents that it does not name"
                )))
            }
        }
    }

    /// Returns the first claim of a workload of another tenant to programs in `entry`. Known claims come first.
    fn claimed_elsewhere(&self, service: &ServiceName, entry: &WorkloadEntry) -> Option<Claim> {
        let prefixes = self.shared.node.tenant_prefixes(RecordKind::Workload);
        let (_, entries) = self.shared.node.read(&prefixes);
        let mut unknown = None;
        for (key, other) in entries.iter() {
            let Ok(key) = RecordKey::parse(key) else { continue };
            if key.service().is_none_or(|other| other.tenant == service.tenant) {
                continue;
            }
            match record_encoding::decode(&key, &other.value) {
                Ok(Record::Workload(other)) => match entry.contested(&other) {
                    Some(i) => return Some(Claim::Program(i)),
                    None => continue,
                },
                Err(_) if may_share_agent(entry, &other.value) => unknown = unknown.or(Some(key)),
                _ => {}
            }
        }
        unknown.map(Claim::Unknown)
    }

    /// Checks that a caller may act for an instance.
    fn check_instance(
        &self,
        grants: &Grants,
        who: &Caller,
        (service, instance): (&ServiceName, &InstanceId),
    ) -> Result<(), Status> {
        let owner = self.owner(grants, service, instance);
        if grants.may_serve(service, owner.as_deref()) {
            return Ok(());
        }
        Err(match grants.may_serve(service, None) {
            true => Status::not_found(format!(
                "'{instance}' of {service} is not registered by {who}: it is another's, as long as that one renews it"
            )),
            false => self.lacks(grants, who, (service, "registrar of it")),
        })
    }

    /// Returns the refusal for a caller that lacks a role for a service.
    fn lacks(&self, grants: &Grants, who: &Caller, (service, role): (&ServiceName, &str)) -> Status {
        match self.may_view(grants, service) {
            true => Status::permission_denied(format!(
                "{who} may read {service}, and lacks the role {role} for this; see `fairmesh get roles`"
            )),
            false => not_found(who, service),
        }
    }

    /// Returns the agent that registered an instance, unless the instance is lost.
    fn owner(&self, grants: &Grants, service: &ServiceName, instance: &InstanceId) -> Option<String> {
        let machine = grants.machine.as_ref()?;
        let agent = machine.agent.as_ref()?;
        let node = &self.shared.node;
        // The common case needs no search: the instance is in the agent's region, and the agent registered it.
        if let Some(region) = &machine.region {
            let key = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
            let owner = node.get(&key.to_string()).and_then(|entry| registered_by(&key, &entry.value));
            if owner.as_deref() == Some(agent.as_str()) {
                return owner;
            }
        }
        let (_, entries) = node.read(&[Prefix::endpoints(service, None)]);
        let named = entries.iter().filter(|(key, _)| key.rsplit('/').next() == Some(instance.as_str()));
        let owners =
            named.filter_map(|(key, entry)| registered_by(&RecordKey::parse(key).ok()?, &entry.value));
        owners.last()
    }
}

impl Caller {
    /// Whether the caller forwards another caller's call but cannot vouch for that caller.
    fn forwards_without_vouching(&self) -> bool {
        let Identity::Spiffe(id) = &self.identity else { return false };
        self.is_forwarded && !matches!(id.path, SpiffePath::Mesh(MeshRole::Agent, _))
    }
}

/// Returns the original caller of a call, regardless of how many processes forwarded it: the signer of the statement,
/// or the caller at the other end of the connection if there is no statement.
fn maker(
    transport: Caller,
    call: CompleteCall<'_>,
    message: &[u8],
    verify: impl FnOnce(&[u8], StatedCall<'_>) -> Result<SpiffeId, Status>,
) -> Result<Caller, Status> {
    if !call.headers.contains_key(STATEMENT) {
        return Ok(of_program(transport, call.headers));
    }
    let unreadable = || Status::invalid_argument("the statement of the call cannot be read");
    let metadata = MetadataMap::from_headers(call.headers.clone());
    let statement =
        metadata.get_bin(STATEMENT).and_then(|value| value.to_bytes().ok()).ok_or_else(unreadable)?;
    let on_behalf_of = call.headers.get(ON_BEHALF_OF).map(|value| value.to_str());
    let on_behalf_of = on_behalf_of.transpose().map_err(|_| unreadable())?.unwrap_or_default();
    let id = verify(&statement, StatedCall { path: call.path, on_behalf_of, message })?;
    let vouches = matches!(id.path, SpiffePath::Mesh(MeshRole::Agent, _));
    let is_forwarded = !on_behalf_of.is_empty() && !vouches;
    // If a process on this machine relays a statement, the original caller may be on another machine.
    let is_beside = transport.is_beside && !call.headers.contains_key(RELAYED);
    Ok(Caller { identity: Identity::Spiffe(id), is_forwarded, is_beside, ..transport })
}

/// Returns the original caller of an unsigned call that an agent on this machine forwards. The agent has no
/// certificate and cannot sign. Programs of other users get none of the agent's rights. The stated user is trusted
/// only if the agent runs as root or as this process's own user.
fn of_program(transport: Caller, headers: &HeaderMap) -> Caller {
    if !transport.is_forwarded || !transport.is_beside {
        return transport;
    }
    let own = [0, rustix::process::geteuid().as_raw()].map(|uid| Identity::Local { uid }.to_string());
    let program = headers.get(ON_BEHALF_OF).and_then(|value| value.to_str().ok());
    match program.is_some_and(|program| own.iter().any(|own| own == program)) {
        true => transport,
        false => Caller { identity: Identity::Anonymous, ..transport },
    }
}

/// A claim of another tenant's workload to programs.
enum Claim {
    /// The program with this index.
    Program(usize),
    /// Any program: the record with this key cannot be decoded.
    Unknown(RecordKey),
}

/// Whether one agent may vouch for programs of `entry` and of a workload that cannot be decoded. A later release may have
/// written it, with agents that can still be read.
fn may_share_agent(entry: &WorkloadEntry, unreadable: &[u8]) -> bool {
    let agents = v1::WorkloadEntry::decode(unreadable).map(|other| other.agents).unwrap_or_default();
    let is_shared = |agent: &Label| agents.iter().any(|other| other == agent.as_str());
    agents.is_empty() || entry.agents.is_empty() || entry.agents.iter().any(is_shared)
}

/// Returns the agent that registered an endpoint, unless the endpoint is lost.
fn registered_by(key: &RecordKey, value: &[u8]) -> Option<String> {
    match record_encoding::decode(key, value).ok()? {
        Record::Endpoint(endpoint) if endpoint.state != EndpointState::Lost => {
            endpoint.labels.get(Endpoint::AGENT).cloned()
        }
        _ => None,
    }
}

/// Returns the refusal of a call without a statement, forwarded by a process that cannot vouch for its caller.
fn unstated(transport: &Caller) -> Status {
    Status::permission_denied(format!(
        "{transport} passes on a call without the statement of its maker, which has no rights: call through an agent, call the \
         control plane, or upgrade the caller"
    ))
}

/// Returns the refusal of health checks in a region.
fn check_refusal(who: &Caller, region: &Region) -> Status {
    Status::permission_denied(format!(
        "{who} does not check the region {region}: an agent checks the one in which it joined, if it vouches for all tenants"
    ))
}

/// Returns the refusal of what only callers and servers do, for a caller that is neither.
fn for_programs(who: &Caller, refused: &str) -> Status {
    Status::permission_denied(format!(
        "{who} {refused}: agents, processes of the mesh and programs with an identity of their own do"
    ))
}

/// Returns the refusal for a service that does not exist or that the caller may not know.
fn not_found(who: &Caller, service: &ServiceName) -> Status {
    Status::not_found(format!(
        "there is no service {service} that {who} may use; a role binding can permit it"
    ))
}

/// The role that may write a service's record.
fn writer_role(key: &RecordKey) -> &'static str {
    match key {
        RecordKey::Authorization(_) => "authorizer of its tenant",
        _ => "operator of its tenant",
    }
}

fn lacks_role(who: &Caller, role: &str) -> Status {
    Status::permission_denied(format!(
        "{who} needs the role {role}; an admin, such as the user of the control plane over its Unix socket, can give it with \
         'kind: RoleBinding'"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{
        Revision, StoreId,
        access::{Delegation, Reach, UidRange, WorkloadBounds},
    };

    use super::*;
    use crate::{Entry, Node, Snapshot, Update};

    /// Returns the message of a workload, in which the uid of each program may be missing.
    fn workload(agents: &[&str], uid: Option<u32>) -> v1::WorkloadEntry {
        let program = v1::ProgramSelector { uid, ..v1::ProgramSelector::default() };
        let agents = agents.iter().map(ToString::to_string).collect();
        v1::WorkloadEntry { agents, programs: vec![program] }
    }

    /// Returns the access control of a mesh with this record of the workload `blue/web`.
    fn access(value: Vec<u8>) -> AccessControl {
        let key = RecordKey::Workload(ServiceName::new("blue/web").unwrap());
        let entries = [(key.to_string().into(), Entry { value: value.into(), revision: 1 })].into();
        let snapshot = Snapshot { prefix: Prefix::from(&key), entries, age: Duration::ZERO };
        let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
        let node = Node::replica();
        node.apply_update(Update { snapshots: vec![snapshot], ..Update::empty(revision) }).unwrap();
        AccessControl::new(node)
    }

    #[test]
    fn unreadable_workload_of_another_tenant_refuses_programs_of_the_same_agents() {
        let service = ServiceName::new("red/x").unwrap();
        let red = Reach::of(&["red".parse().unwrap()]);
        let bounds =
            WorkloadBounds { uids: vec![UidRange::parse("1000-1999").unwrap()], ..Default::default() };
        let delegate = Grants {
            view: red.clone(),
            workloads: vec![Delegation { tenants: red, bounds }],
            ..Grants::default()
        };
        let everywhere = Grants { view: Reach::Everything, ..delegate.clone() };
        let who = Caller::from(Identity::Anonymous);
        let register = |record: Vec<u8>, grants: &Grants, agents: &[&str]| {
            let entry = WorkloadEntry::try_from(workload(agents, Some(1001))).unwrap();
            let need = Need::Register(service.clone(), Box::new(entry));
            access(record).check_one(grants, &who, &need).map_err(|refused| refused.message().to_owned())
        };
        // A later release knows other conditions on programs.
        let later = || workload(&["web-1"], None).encode_to_vec();
        assert_eq!(register(later(), &delegate, &["web-2"]), Ok(()), "no agent vouches for both");
        let refused = register(later(), &delegate, &["web-1"]).unwrap_err();
        assert!(refused.contains("since a record of another tenant cannot be read"), "{refused}");
        assert!(!refused.contains("blue"), "it names no other tenant: {refused}");
        let refused = register(later(), &everywhere, &[]).unwrap_err();
        assert!(refused.contains("/t/blue/") && refused.contains("/web cannot be read"), "{refused}");
        let damaged = register(vec![0xff], &delegate, &["web-2"]).unwrap_err();
        assert!(damaged.contains("cannot be read"), "{damaged}");
        let known = register(workload(&[], Some(1001)).encode_to_vec(), &delegate, &["web-2"]).unwrap_err();
        assert!(known.contains("programs[0] of red/x may be programs of another tenant's"), "{known}");
    }
}
