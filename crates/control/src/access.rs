//! Access control: the one place where calls over gRPC and HTTP are permitted or refused.
//!
//! Each method and route says in a table what it needs of its caller, and a test fails for one that is not listed. A check
//! in each handler was rejected: one would be forgotten. Reads and watches of prefixes are the exception: `rib::server`
//! checks them by the same decisions, since replicas serve them too.

mod caller;
mod grpc;
mod http;
mod needs;
mod requests;
mod table;
mod trust;

use std::sync::Arc;

use fairmesh_identity::RevocationList;
use fairmesh_model::{
    Endpoint, EndpointState, InstanceId, Prefix, Record, RecordKey, ServiceName, access::Grants,
};
use fairmesh_rib::{
    Node,
    access::{AccessControl, Caller, region_refusal},
};
use fairmesh_wire::records;
use tonic::Status;

pub(crate) use grpc::guard_calls;
pub(crate) use http::guard_pages;
use needs::Need;
use trust::RecordedTrust;

use crate::user_tokens::UserTokens;

/// What decides on calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) control: AccessControl,
    node: Node,
    trust: Arc<RecordedTrust>,
    tokens: UserTokens,
}

impl Access {
    pub(crate) fn new(
        control: AccessControl,
        (node, revocations): (Node, RevocationList),
        tokens: UserTokens,
    ) -> Self {
        let trust = Arc::new(RecordedTrust::new(node.clone(), revocations));
        Self { control, node, trust, tokens }
    }

    /// Whether a caller may do all of this.
    ///
    /// # Errors
    /// The first that it may not, in the words for what does not exist unless the caller may read it.
    fn check(&self, caller: &Caller, needs: &[Need]) -> Result<(), Status> {
        let grants = self.control.grants(caller);
        needs.iter().try_for_each(|need| self.check_one(&grants, caller, need))
    }

    fn check_one(&self, grants: &Grants, who: &Caller, need: &Need) -> Result<(), Status> {
        let views = |service: &ServiceName| self.control.may_view(grants, service);
        let (admin, relays) = (grants.admin, grants.relays_reports);
        let refusal = match need {
            Need::View(service) if !views(service) => not_found(who, service),
            Need::ViewAll if !grants.view.is_everything() => lacks_role(who, "viewer of all tenants"),
            // The handler asks for the user of the control plane, whatever the records say.
            Need::Write(RecordKey::TrustBundle | RecordKey::JoinedAgent(_)) => return Ok(()),
            Need::Write(key) if !grants.may_write(key) => match key.service() {
                Some(service) => self.lacks(grants, who, (service, "operator of its tenant")),
                None => lacks_role(who, "admin"),
            },
            Need::Operate(service) if !grants.may_operate(service) => {
                self.lacks(grants, who, (service, "operator of its tenant"))
            }
            Need::Serve(service, instance) => return self.check_instance(grants, who, (service, instance)),
            Need::Claim(service) if !admin && !views(service) => not_found(who, service),
            Need::Check(region) if !grants.may_check(region) => Status::permission_denied(format!(
                "{who} does not check the region {region}: an agent checks the one in which it joined, if it vouches for all \
                 tenants"
            )),
            Need::ReportFor(region) if !grants.reports_for(region) => {
                Status::permission_denied(region_refusal(&who.identity, region))
            }
            Need::ServeAny(service) if !relays && !grants.may_serve(service, None) => not_found(who, service),
            Need::CallFrom(service) if !relays && !admin && !views(service) => not_found(who, service),
            Need::CallFromAny if !relays && !grants.view.is_everything() => {
                lacks_role(who, "viewer of all tenants")
            }
            Need::Admin if !admin => lacks_role(who, "admin"),
            _ => return Ok(()),
        };
        Err(refusal)
    }

    /// Whether a caller may act for an instance.
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

    /// The refusal of a caller that lacks a role for a service.
    fn lacks(&self, grants: &Grants, who: &Caller, (service, role): (&ServiceName, &str)) -> Status {
        match self.control.may_view(grants, service) {
            true => Status::permission_denied(format!(
                "{who} may read {service}, and no more; it needs the role {role}, see `fairmesh get roles`"
            )),
            false => not_found(who, service),
        }
    }

    /// The agent that registered an instance which is not lost.
    fn owner(&self, grants: &Grants, service: &ServiceName, instance: &InstanceId) -> Option<String> {
        let machine = grants.machine.as_ref()?;
        let agent = machine.agent.as_ref()?;
        // The common case without a search: the instance is of the agent's region, and its own.
        if let Some(region) = &machine.region {
            let key = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
            let owner = self.node.get(&key.to_string()).and_then(|entry| registered_by(&key, &entry.value));
            if owner.as_deref() == Some(agent.as_str()) {
                return owner;
            }
        }
        let (_, entries) = self.node.read(&[Prefix::endpoints(service, None)]);
        let named = entries.iter().filter(|(key, _)| key.rsplit('/').next() == Some(instance.as_str()));
        let owners =
            named.filter_map(|(key, entry)| registered_by(&RecordKey::parse(key).ok()?, &entry.value));
        owners.last()
    }
}

/// The agent that registered an endpoint, unless it is lost.
fn registered_by(key: &RecordKey, value: &[u8]) -> Option<String> {
    match records::decode(key, value).ok()? {
        Record::Endpoint(endpoint) if endpoint.state != EndpointState::Lost => {
            endpoint.labels.get(Endpoint::AGENT).cloned()
        }
        _ => None,
    }
}

/// The same for services that do not exist and for those that the caller may not know.
fn not_found(who: &Caller, service: &ServiceName) -> Status {
    Status::not_found(format!(
        "there is no service {service} that {who} may use; a role binding can permit it"
    ))
}

fn lacks_role(who: &Caller, role: &str) -> Status {
    Status::permission_denied(format!(
        "{who} needs the role {role}; an admin, such as the user of the control plane over its Unix socket, can give it with \
         'kind: RoleBinding'"
    ))
}
