//! Policies of services, with the defaults of their tenants and of the mesh.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{
    Balancing, DefaultsByScope, DefaultsScope, InheritedDefaults, Policy, PolicyDefaults, PolicyField,
    ServiceName, Traffic,
};

use super::MeshFacts;

/// What planners need of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyFacts {
    /// The planner that divides the calls among regions. A policy that names none has the default, no planner.
    pub traffic: Traffic,
    /// Whether it says that the service has no planner, whatever the defaults say.
    pub refuses_planner: bool,
    /// Whether it divides calls in a way that this release does not know; `traffic` is the default then.
    pub not_understood: bool,
    /// Whether calls may not leave their region.
    pub local_only: bool,
    /// Whether calls prefer the zone of their caller.
    pub zone_first: bool,
    /// To how many endpoints a caller keeps connections.
    pub subset: Subset,
}

/// Number of endpoints of a region to which one caller keeps connections; 0 is all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subset(pub u32);

impl Default for Subset {
    fn default() -> Self {
        Self(Balancing::default().subset)
    }
}

/// The policies as written, and what completes them.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenPolicies {
    /// Policies that say anything about planning.
    own: BTreeMap<ServiceName, PolicyFacts>,
    /// Services that have the defaults if they have no policy.
    declared: BTreeSet<ServiceName>,
    defaults: DefaultsByScope,
}

impl WrittenPolicies {
    /// The policy of a service with the defaults of its tenant and of the mesh.
    fn in_force(&self, service: &ServiceName) -> PolicyFacts {
        let own = self.own.get(service).cloned().unwrap_or_default();
        match self.declared.contains(service) {
            true => own.with_defaults(&self.defaults.of(&service.tenant)),
            false => own,
        }
    }
}

impl PolicyFacts {
    /// The same, completed by defaults.
    #[must_use]
    pub fn with_defaults(self, inherited: &InheritedDefaults) -> Self {
        if self.not_understood {
            return self;
        }
        let traffic = (self.traffic != Traffic::default()).then(|| Box::new(self.traffic));
        let policy = Policy { traffic, ..Policy::default() };
        let policy = policy.restating(self.refuses_planner.then_some(PolicyField::Traffic));
        let traffic = inherited.apply(policy).traffic.map(|traffic| *traffic).unwrap_or_default();
        Self { traffic, ..self }
    }
}

impl MeshFacts {
    /// A policy is written, or removed.
    pub fn set_policy(&mut self, service: &ServiceName, policy: Option<PolicyFacts>) {
        match policy.filter(|policy| *policy != PolicyFacts::default()) {
            Some(policy) => drop(self.policies.own.insert(service.clone(), policy)),
            None => drop(self.policies.own.remove(service)),
        }
        self.put_policy_in_force(service, self.policies.in_force(service));
    }

    /// A service is declared, or its declaration is removed.
    pub fn set_declared(&mut self, service: &ServiceName, is_declared: bool) {
        match is_declared {
            true => self.policies.declared.insert(service.clone()),
            false => self.policies.declared.remove(service),
        };
        self.renew_policy(service);
    }

    /// Defaults are written, or removed: the policies that they complete change.
    pub fn set_policy_defaults(&mut self, scope: &DefaultsScope, defaults: Option<PolicyDefaults>) {
        if self.policies.defaults.set(scope.clone(), defaults) {
            let declared = self.policies.declared.iter();
            let affected: Vec<_> = declared.filter(|name| scope.includes(&name.tenant)).cloned().collect();
            affected.iter().for_each(|service| self.renew_policy(service));
        }
    }

    /// Puts a policy in force if it divides calls otherwise than before. The other fields have no defaults.
    fn renew_policy(&mut self, service: &ServiceName) {
        let policy = self.policies.in_force(service);
        let before = self.service(service).map(|facts| facts.traffic.clone()).unwrap_or_default();
        if before != policy.traffic {
            self.put_policy_in_force(service, policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Tenant, TrafficPlanner};

    use super::*;

    fn planned(planner: TrafficPlanner) -> Traffic {
        Traffic { planner: Some(planner), ..Traffic::default() }
    }

    fn defaults(planner: TrafficPlanner) -> Option<PolicyDefaults> {
        let traffic = Some(Box::new(planned(planner)));
        Some(PolicyDefaults::new(&Policy { traffic, ..Policy::default() }).unwrap())
    }

    fn planned_services(facts: &MeshFacts) -> String {
        let service = |name: &ServiceName| {
            let planner = facts.service(name).and_then(|facts| facts.traffic.planner);
            format!("{name} {}", planner.map_or("-", TrafficPlanner::name))
        };
        facts.planned().iter().map(service).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn default_planner_plans_declared_services_without_own_setting() {
        use TrafficPlanner::{Optimizer, Rings};
        let mut facts = MeshFacts::default();
        let [cart, pay, old, ads] =
            ["shop/cart", "shop/pay", "shop/old", "ads/bid"].map(|name| ServiceName::new(name).unwrap());
        let shop = DefaultsScope::Tenant(Tenant::new("shop").unwrap());
        facts.set_policy_defaults(&DefaultsScope::Mesh, defaults(Optimizer));
        assert_eq!(planned_services(&facts), "", "nothing is declared");
        [&cart, &pay, &old, &ads].into_iter().for_each(|name| facts.set_declared(name, true));
        facts.set_policy(&pay, Some(PolicyFacts { traffic: planned(Rings), ..PolicyFacts::default() }));
        facts.set_policy(&old, Some(PolicyFacts { refuses_planner: true, ..PolicyFacts::default() }));
        assert_eq!(planned_services(&facts), "ads/bid optimizer, shop/cart optimizer, shop/pay rings");
        facts.set_policy_defaults(&shop, defaults(Rings));
        assert_eq!(planned_services(&facts), "ads/bid optimizer, shop/cart rings, shop/pay rings");
        let version = facts.version();
        facts.set_policy_defaults(&shop, defaults(Rings));
        assert_eq!(facts.version(), version, "nothing changed");
        facts.set_declared(&ads, false);
        facts.set_policy_defaults(&shop, None);
        facts.set_policy(&pay, None);
        facts.set_policy_defaults(&DefaultsScope::Mesh, None);
        assert_eq!(planned_services(&facts), "");
        assert!(facts.service(&cart).is_none(), "nothing is kept of a service without facts");
    }
}
