use std::collections::BTreeSet;

use super::{AccessRole, OutOfBounds, RoleBinding, WorkloadBounds};
use crate::{
    DefaultsScope, KindScope, Label, Prefix, Readers, RecordKey, RecordKind, Region, ServiceName, Tenant,
    WorkloadEntry, Writers,
};

/// Tenants covered by a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// No tenant.
    #[default]
    Nothing,
    /// The given tenants.
    Tenants(BTreeSet<Tenant>),
    /// Every tenant, and records without a tenant.
    Everything,
}

/// The machine of a caller: an agent, or a process for which it vouches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The agent's name; `None` on the control plane's machine, which may have no agent.
    pub agent: Option<Label>,
    /// The region to which the agent is bound, if any.
    pub region: Option<Region>,
    /// Whether the caller is the agent itself, which may stand for election and report.
    pub is_agent: bool,
}

/// The permissions of a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Whether all operations are allowed.
    pub admin: bool,
    /// Tenants whose records may be read.
    pub view: Reach,
    /// Tenants whose records may be written.
    pub operate: Reach,
    /// Tenants for whose services the caller may change which callers are allowed.
    pub authorize: Reach,
    /// Tenants for whose services the caller may register endpoints. A caller with a machine may register endpoints
    /// on its own machine only.
    pub serve: Reach,
    /// Services for which the caller may register endpoints, even if another agent registered them before.
    pub registrar: BTreeSet<ServiceName>,
    /// The caller's machine.
    pub machine: Option<Machine>,
    /// Whether the caller forwards summed reports, as replicas do.
    pub relays_reports: bool,
    /// Whether the caller is a gateway replica, which serves all tenants.
    pub is_gateway: bool,
    /// Delegations that allow the caller to give identities to programs.
    pub workloads: Vec<Delegation>,
}

/// Registration of workloads, delegated by an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Tenants whose services are delegated.
    pub tenants: Reach,
    /// Bounds on the programs that may get an identity.
    pub bounds: WorkloadBounds,
}

impl Reach {
    /// A reach that covers `tenants`. An empty list covers all tenants, as in records of agents and role bindings.
    pub fn of(tenants: &[Tenant]) -> Self {
        match tenants.is_empty() {
            true => Self::Everything,
            false => Self::Tenants(tenants.iter().cloned().collect()),
        }
    }

    /// Whether a tenant is covered.
    pub fn includes(&self, tenant: &Tenant) -> bool {
        match self {
            Self::Nothing => false,
            Self::Tenants(tenants) => tenants.contains(tenant),
            Self::Everything => true,
        }
    }

    /// Whether all tenants, and records without a tenant, are covered.
    pub fn is_everything(&self) -> bool {
        *self == Self::Everything
    }

    /// Extends this reach by `other`.
    pub fn extend(&mut self, other: Self) {
        match (&mut *self, other) {
            (_, Self::Nothing) | (Self::Everything, _) => {}
            (Self::Tenants(own), Self::Tenants(others)) => own.extend(others),
            (_, other) => *self = other,
        }
    }
}

impl Grants {
    /// Grants of an administrator.
    pub fn admin() -> Self {
        let [view, operate, authorize, serve] = [const { Reach::Everything }; 4];
        Self { admin: true, view, operate, authorize, serve, ..Self::default() }
    }

    /// Adds the grants of a role binding.
    pub fn add(&mut self, binding: &RoleBinding) {
        match binding.role {
            AccessRole::Viewer => self.view.extend(Reach::of(&binding.tenants)),
            AccessRole::Operator => {
                for reach in [&mut self.view, &mut self.operate] {
                    reach.extend(Reach::of(&binding.tenants));
                }
                let delegation = |bounds: &WorkloadBounds| Delegation {
                    tenants: Reach::of(&binding.tenants),
                    bounds: bounds.clone(),
                };
                self.workloads.extend(binding.workloads.as_ref().map(delegation));
            }
            AccessRole::Authorizer => {
                for reach in [&mut self.view, &mut self.authorize] {
                    reach.extend(Reach::of(&binding.tenants));
                }
            }
            AccessRole::Registrar => self.registrar.extend(binding.services.iter().cloned()),
            AccessRole::Admin => {
                let machine = self.machine.take();
                *self = Self { machine, ..Self::admin() };
            }
        }
    }

    /// Whether the caller may read a service's records. `is_callable` returns whether programs on the caller's
    /// machine may call the service.
    pub fn may_view(&self, service: &ServiceName, is_callable: impl FnOnce() -> bool) -> bool {
        self.view.includes(&service.tenant)
            || self.registrar.contains(service)
            || (self.machine.is_some() && is_callable())
    }

    /// Whether the caller may read or watch a prefix. `is_callable` returns whether programs on the caller's machine
    /// may call a service; such a machine may read the records that its router needs.
    pub fn may_read(&self, prefix: &Prefix, is_callable: impl FnOnce(&ServiceName) -> bool) -> bool {
        if self.view.is_everything() {
            return true;
        }
        let text = prefix.as_str();
        let segments: Vec<&str> = text.strip_prefix('/').unwrap_or(text).split('/').collect();
        match segments[..] {
            // A caller may read the defaults of a tenant whose name it knows, but not list all tenants.
            ["g", "policy-defaults", tenant] => !tenant.is_empty(),
            ["g", "policy-defaults", ..] => false,
            ["g", group, ..] => is_for_everyone(text, group),
            ["t", tenant, _] => prefix.is_folder() && self.views_tenant(tenant),
            ["t", tenant, _, ""] => self.views_tenant(tenant),
            ["t", tenant, "history", _, service, ..] => {
                self.views_tenant(tenant)
                    || named(tenant, service).is_some_and(|name| self.registrar.contains(&name))
            }
            ["t", tenant, kind, service, ..] => {
                let rules = RecordKind::in_folder(kind).map(RecordKind::rules);
                let is_routed = rules.is_some_and(|rules| rules.readers == Readers::Callers);
                named(tenant, service)
                    .is_some_and(|name| self.may_view(&name, || is_routed && is_callable(&name)))
            }
            _ => false,
        }
    }

    fn views_tenant(&self, tenant: &str) -> bool {
        Tenant::new(tenant).is_ok_and(|tenant| self.view.includes(&tenant))
    }

    /// Whether the caller may write a record.
    pub fn may_write(&self, key: &RecordKey) -> bool {
        if let RecordKey::PolicyDefaults(DefaultsScope::Tenant(tenant)) = key {
            return self.operate.includes(tenant);
        }
        let Some(service) = key.service() else { return self.admin };
        match key.kind().rules().writers {
            Writers::Operators => self.operate.includes(&service.tenant),
            Writers::Authorizers => self.authorize.includes(&service.tenant),
            Writers::Delegates => self.admin || self.delegations(service).next().is_some(),
            Writers::Admins => self.admin,
        }
    }

    /// Checks that the caller may give the identity of `service` to the programs of a workload.
    ///
    /// # Errors
    /// The part of the workload that is not permitted.
    pub fn may_register(&self, service: &ServiceName, entry: &WorkloadEntry) -> Result<(), OutOfBounds> {
        let mut refused = None;
        for delegation in self.delegations(service).filter(|_| !self.admin) {
            match delegation.bounds.check(entry) {
                Ok(()) => return Ok(()),
                Err(why) => refused = Some(why),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn delegations(&self, service: &ServiceName) -> impl Iterator<Item = &Delegation> {
        self.workloads.iter().filter(|delegation| delegation.tenants.includes(&service.tenant))
    }

    /// Whether the caller may change the shard map of a service.
    pub fn may_operate(&self, service: &ServiceName) -> bool {
        self.operate.includes(&service.tenant)
    }

    /// Whether the caller may register, renew, report, drain and deregister an endpoint. `owner` is the agent that
    /// registered it; `None` if no agent did.
    pub fn may_serve(&self, service: &ServiceName, owner: Option<&str>) -> bool {
        if self.may_stand_in(service) {
            return true;
        }
        if !self.serve.includes(&service.tenant) {
            return false;
        }
        match (self.machine.as_ref().and_then(|machine| machine.agent.as_ref()), owner) {
            (Some(agent), Some(owner)) => agent.as_str() == owner,
            _ => true,
        }
    }

    /// Whether the caller may act on endpoints of `service` as an operator, overriding the process that registered
    /// them.
    pub fn may_stand_in(&self, service: &ServiceName) -> bool {
        self.operate.includes(&service.tenant) || self.registrar.contains(service)
    }

    /// Whether the caller may be a region's checker. A checker sees every service, so its agent must cover all
    /// tenants.
    pub fn may_check(&self, region: &Region) -> bool {
        self.admin || (self.view.is_everything() && self.reports_for(region))
    }

    /// Whether the caller may report for `region`.
    pub fn reports_for(&self, region: &Region) -> bool {
        self.admin
            || self.relays_reports
            || self.machine.as_ref().is_some_and(|machine| {
                machine.is_agent && machine.region.as_ref().is_none_or(|own| own == region)
            })
    }
}

/// Whether everyone may read `prefix`, which is below `/g/{group}`. If everyone may read every kind of the group,
/// this includes kinds of newer releases. Otherwise the prefix must be within one kind that everyone may read.
fn is_for_everyone(prefix: &str, group: &str) -> bool {
    let is_open = |kind: RecordKind| kind.rules().readers == Readers::Everyone;
    let of_mesh = RecordKind::ALL.iter().copied().filter(|kind| kind.scope() == KindScope::Mesh);
    let of_group: Vec<_> = of_mesh.filter(|kind| kind.group() == group).collect();
    let is_open_group = !of_group.is_empty() && of_group.into_iter().all(is_open);
    is_open_group || RecordKind::of(prefix).is_some_and(is_open)
}

fn named(tenant: &str, service: &str) -> Option<ServiceName> {
    Some(ServiceName { tenant: Tenant::new(tenant).ok()?, service: Label::new(service).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(text: &str) -> ServiceName {
        ServiceName::new(text).unwrap()
    }

    fn agent(tenants: &[&str]) -> Grants {
        let tenants: Vec<_> = tenants.iter().map(|name| Tenant::new(*name).unwrap()).collect();
        let agent = Some(Label::new("web-1").unwrap());
        let machine = Machine { agent, region: Some(Region::new("eu").unwrap()), is_agent: true };
        Grants {
            view: Reach::of(&tenants),
            serve: Reach::of(&tenants),
            machine: Some(machine),
            ..Grants::default()
        }
    }

    #[test]
    fn agent_may_read_records_of_its_tenants_callable_services_and_mesh() {
        let (agent, callable) = (agent(&["shop"]), service("bank/rates"));
        for (prefix, may) in [
            ("/t/shop/services/", true),
            ("/t/shop/services/cart", true),
            ("/t/shop/history/policies/cart/", true),
            ("/t/shop/", true),
            ("/t/bank/endpoints/rates/", true),
            ("/t/bank/endpoints/rates/eu/", true),
            ("/t/bank/policies/rates", true),
            ("/t/bank/workloads/rates", false),
            ("/t/bank/history/policies/rates/", false),
            ("/t/bank/moves/rates/", false),
            ("/t/bank/endpoints/vault/", false),
            ("/t/bank/services/", false),
            ("/t/bank/", false),
            ("/t/ban", false),
            ("/t/shop", false),
            ("/t/", false),
            ("/t", false),
            ("/", false),
            ("/g/", false),
            ("/g/topology/", true),
            ("/g/topology/hosts", true),
            ("/g/authorization", true),
            ("/g/identity/bundle", true),
            ("/g/identity/revocations", true),
            ("/g/identity/federation", true),
            ("/g/identity/issuers", true),
            ("/g/identity/", false),
            ("/g/identity/agents/web-2", false),
            ("/g/roles/", false),
            ("/g/drains/", true),
            ("/g/policy-defaults/", false),
            ("/g/policy-defaults/*", true),
            ("/g/policy-defaults/bank", true),
            ("/g/gateway/backends/", true),
            ("/t/shop/placements/", true),
            ("/t/bank/placements/rates", false),
            ("/t/bank/gateway-services/rates", false),
        ] {
            let read = agent.may_read(&Prefix::new(prefix).unwrap(), |name| *name == callable);
            assert_eq!(read, may, "{prefix}");
        }
        assert!(Grants::admin().may_read(&Prefix::everything(), |_| false));
        assert!(!Grants::default().may_read(&Prefix::new("/t/shop/services/cart").unwrap(), |_| true));
    }

    #[test]
    fn machine_may_act_only_for_its_own_instances() {
        let own = agent(&["shop"]);
        assert!(own.may_serve(&service("shop/cart"), None));
        assert!(own.may_serve(&service("shop/cart"), Some("web-1")));
        assert!(!own.may_serve(&service("shop/cart"), Some("web-2")));
        assert!(!own.may_serve(&service("bank/vault"), None));
        assert!(!own.may_stand_in(&service("shop/cart")), "an agent is no operator");
        let registrar = Grants { registrar: [service("shop/cart")].into(), ..Grants::default() };
        assert!(registrar.may_serve(&service("shop/cart"), Some("web-2")));
        assert!(!registrar.may_serve(&service("shop/web"), None));
    }

    #[test]
    fn only_agents_of_all_tenants_may_check_health_of_their_region() {
        let [eu, us] = ["eu", "us"].map(|name| Region::new(name).unwrap());
        assert!(agent(&[]).may_check(&eu) && !agent(&[]).may_check(&us));
        assert!(!agent(&["shop"]).may_check(&eu));
        assert!(agent(&["shop"]).reports_for(&eu) && !agent(&["shop"]).reports_for(&us));
        assert!(!Grants::default().reports_for(&eu));
    }

    #[test]
    fn rights_of_roles_add_up_and_operator_writes_only_its_tenant() {
        let tenants = |name| vec![Tenant::new(name).unwrap()];
        let binding = |role, tenants| RoleBinding {
            role,
            tenants,
            services: Vec::new(),
            subjects: Vec::new(),
            workloads: None,
        };
        let mut grants = Grants::default();
        grants.add(&binding(AccessRole::Viewer, tenants("bank")));
        grants.add(&binding(AccessRole::Operator, tenants("shop")));
        let policy = |name| RecordKey::Policy(service(name));
        assert!(grants.may_write(&policy("shop/cart")) && !grants.may_write(&policy("bank/vault")));
        assert!(grants.may_view(&service("bank/vault"), || false));
        assert!(!grants.may_write(&RecordKey::Regions));
        let defaults = |tenant| RecordKey::PolicyDefaults(DefaultsScope::named(tenant).unwrap());
        assert_eq!(["shop", "bank", ""].map(|of| grants.may_write(&defaults(of))), [true, false, false]);
        // An operator decides how a service uses the gateway, but not which backends serve the service.
        assert!(grants.may_write(&RecordKey::GatewayService(service("shop/cart"))));
        assert!(!grants.may_write(&RecordKey::Placement(service("shop/cart"))));
        assert!(!grants.may_write(&RecordKey::GatewayBackend(Label::new("gw-1").unwrap())));
        assert!(!grants.may_write(&RecordKey::History(RecordKind::Policy, service("shop/cart"), 1)));
        grants.add(&binding(AccessRole::Admin, Vec::new()));
        assert!(grants.may_write(&RecordKey::Regions) && grants.admin);
    }
}
