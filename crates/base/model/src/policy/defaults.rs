//! Defaults for policies, set per tenant or for the whole mesh.
//!
//! Each field comes from the first source that states it: the service's policy, the defaults of its tenant, the
//! defaults of the mesh, the built-in value. Readers of policies merge these sources here, so one changed record
//! affects all policies of a tenant. Storing merged policies was rejected: a change of the defaults would rewrite the
//! policy of every service.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

use super::{LocalTransport, Locality, Policy, Retries};
use crate::{Invalid, Tenant};

/// A field of a policy for which defaults can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyField {
    /// The timeout of the whole call.
    Timeout,
    /// The timeout of response headers.
    ResponseHeaderTimeout,
    /// The idle timeout in the middle of a body.
    IdleTimeout,
    /// The maximum number of attempts.
    Attempts,
    /// Retries as a percentage of calls.
    BudgetPercent,
    /// Retries per second that are always allowed.
    BudgetFloor,
    /// The rings of regions.
    Rings,
    /// The planner with its mode, rings, classes and load, or fixed shares. These settings are inherited together.
    Traffic,
    /// What carries calls within a machine.
    LocalTransport,
}

/// The source of a field in a merged policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOrigin {
    /// The policy of the service.
    Service,
    /// The defaults of the service's tenant.
    Tenant,
    /// The defaults of the mesh.
    Mesh,
    /// The built-in value.
    BuiltIn,
}

/// The services to which defaults apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DefaultsScope {
    /// All services.
    Mesh,
    /// The services of a tenant.
    Tenant(Tenant),
}

/// Defaults for the policies of a tenant, or of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDefaults(Policy);

/// The defaults that apply to the services of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InheritedDefaults {
    /// Defaults of the tenant.
    pub tenant: Option<Arc<PolicyDefaults>>,
    /// Defaults of the mesh.
    pub mesh: Option<Arc<PolicyDefaults>>,
}

/// All defaults of a mesh, by scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultsByScope(BTreeMap<DefaultsScope, Arc<PolicyDefaults>>);

impl PolicyField {
    /// All fields.
    pub const ALL: [Self; 9] = [
        Self::Timeout,
        Self::ResponseHeaderTimeout,
        Self::IdleTimeout,
        Self::Attempts,
        Self::BudgetPercent,
        Self::BudgetFloor,
        Self::Rings,
        Self::Traffic,
        Self::LocalTransport,
    ];

    /// The path of the field in documents.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::ResponseHeaderTimeout => "responseHeaderTimeout",
            Self::IdleTimeout => "idleTimeout",
            Self::Attempts => "retries.attempts",
            Self::BudgetPercent => "retries.budgetPercent",
            Self::BudgetFloor => "retries.budgetFloor",
            Self::Rings => "locality.rings",
            Self::Traffic => "traffic",
            Self::LocalTransport => "localTransport",
        }
    }

    /// The field with this path in documents; `None` for fields of newer releases.
    pub fn at_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.path() == path)
    }
}

impl FieldOrigin {
    /// One word, for display.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Tenant => "tenant",
            Self::Mesh => "mesh",
            Self::BuiltIn => "built-in",
        }
    }
}

impl Policy {
    /// Whether the policy states `field`, so that defaults do not replace it.
    pub fn states(&self, field: PolicyField) -> bool {
        self.restated.contains(&field) || !self.is_built_in(field)
    }

    /// Marks each of `fields` that has the built-in value as explicitly stated. Fields with another value are stated
    /// anyway.
    #[must_use]
    pub fn restating(mut self, fields: impl IntoIterator<Item = PolicyField>) -> Self {
        let restated: BTreeSet<_> = fields.into_iter().filter(|field| self.is_built_in(*field)).collect();
        self.restated = restated;
        self
    }

    fn is_built_in(&self, field: PolicyField) -> bool {
        let (retries, built_in) = (&self.retries, Retries::default());
        match field {
            PolicyField::Timeout => self.timeouts.total.is_none(),
            PolicyField::ResponseHeaderTimeout => self.timeouts.response_header.is_none(),
            PolicyField::IdleTimeout => self.timeouts.idle.is_none(),
            PolicyField::Attempts => retries.attempts == built_in.attempts,
            PolicyField::BudgetPercent => retries.budget_percent == built_in.budget_percent,
            PolicyField::BudgetFloor => retries.budget_floor == built_in.budget_floor,
            PolicyField::Rings => !self.locality.zone_first && self.locality.has_default_rings(),
            PolicyField::Traffic => self.traffic.is_none(),
            PolicyField::LocalTransport => self.local_transport == LocalTransport::default(),
        }
    }

    /// Copies the value of a field from another policy.
    fn take_field(&mut self, field: PolicyField, from: &Self) {
        match field {
            PolicyField::Timeout => self.timeouts.total = from.timeouts.total,
            PolicyField::ResponseHeaderTimeout => {
                self.timeouts.response_header = from.timeouts.response_header;
            }
            PolicyField::IdleTimeout => self.timeouts.idle = from.timeouts.idle,
            PolicyField::Attempts => self.retries.attempts = from.retries.attempts,
            PolicyField::BudgetPercent => self.retries.budget_percent = from.retries.budget_percent,
            PolicyField::BudgetFloor => self.retries.budget_floor = from.retries.budget_floor,
            PolicyField::Rings => self.locality.rings.clone_from(&from.locality.rings),
            PolicyField::Traffic => self.traffic.clone_from(&from.traffic),
            PolicyField::LocalTransport => self.local_transport = from.local_transport,
        }
    }
}

impl PolicyDefaults {
    /// Takes those fields of a policy that can have defaults, and ignores the others.
    ///
    /// # Errors
    /// For fixed shares, classes and the ring `zone`, which are specific to one service. Servers know the classes of
    /// their calls only from the policy of their own service.
    pub fn new(policy: &Policy) -> Result<Self, Invalid> {
        if policy.traffic.as_ref().is_some_and(|traffic| !traffic.is_planned()) {
            let hint = "write a planner, or write the shares in the policy of the service";
            return Err(Invalid::new("traffic.shares", "have no defaults", hint));
        }
        if policy.traffic.as_ref().is_some_and(|traffic| !traffic.classes.is_empty()) {
            let hint = "write the planner and its classes in the policy of the service";
            return Err(Invalid::new("traffic.classes", "have no defaults", hint));
        }
        if policy.locality.zone_first {
            let hint = "write the ring in the policies of services with a planner";
            return Err(Invalid::new("locality.rings", "has the ring 'zone', which has no default", hint));
        }
        let mut defaults = Policy::default();
        PolicyField::ALL.into_iter().for_each(|field| defaults.take_field(field, policy));
        let defaults = defaults.restating(policy.restated.iter().copied());
        defaults.validate()?;
        Ok(Self(defaults))
    }

    /// The defaults as a policy that states no other fields.
    pub fn as_policy(&self) -> &Policy {
        &self.0
    }
}

impl InheritedDefaults {
    /// Completes a service's policy: fields that the policy does not state get these defaults.
    #[must_use]
    pub fn apply(&self, own: Policy) -> Policy {
        self.merge(own).0
    }

    /// Completes a service's policy like `apply`, and also returns the origin of each field.
    pub fn merge(&self, own: Policy) -> (Policy, [(PolicyField, FieldOrigin); PolicyField::ALL.len()]) {
        let mut merged = own;
        let origins = PolicyField::ALL.map(|field| (field, self.take_default(field, &mut merged)));
        (merged, origins)
    }

    /// Replaces a field that the policy does not state by its default.
    fn take_default(&self, field: PolicyField, policy: &mut Policy) -> FieldOrigin {
        if policy.states(field) {
            return FieldOrigin::Service;
        }
        for (defaults, origin) in [(&self.tenant, FieldOrigin::Tenant), (&self.mesh, FieldOrigin::Mesh)] {
            if let Some(PolicyDefaults(from)) = defaults.as_deref().filter(|one| one.0.states(field)) {
                policy.take_field(field, from);
                return origin;
            }
        }
        FieldOrigin::BuiltIn
    }
}

impl DefaultsByScope {
    /// Sets or removes the defaults of a scope; returns whether they changed.
    pub fn set(&mut self, scope: DefaultsScope, defaults: Option<PolicyDefaults>) -> bool {
        let before = self.0.get(&scope).map(|known| &**known);
        if before == defaults.as_ref() {
            return false;
        }
        match defaults {
            Some(defaults) => drop(self.0.insert(scope, Arc::new(defaults))),
            None => drop(self.0.remove(&scope)),
        }
        true
    }

    /// The defaults that apply to the services of a tenant.
    pub fn of(&self, tenant: &Tenant) -> InheritedDefaults {
        InheritedDefaults {
            tenant: self.0.get(&DefaultsScope::Tenant(tenant.clone())).cloned(),
            mesh: self.0.get(&DefaultsScope::Mesh).cloned(),
        }
    }

    /// All defaults, those of the mesh first.
    pub fn iter(&self) -> impl Iterator<Item = (&DefaultsScope, &PolicyDefaults)> {
        self.0.iter().map(|(scope, defaults)| (scope, &**defaults))
    }
}

impl DefaultsScope {
    /// Parses the scope in documents and commands: a tenant's name, or an empty string for the mesh.
    ///
    /// # Errors
    /// If the name is no valid tenant name.
    pub fn named(tenant: &str) -> Result<Self, Invalid> {
        if tenant.is_empty() { Ok(Self::Mesh) } else { tenant.parse().map(Self::Tenant) }
    }

    /// The tenant; `None` for the mesh.
    pub fn tenant(&self) -> Option<&Tenant> {
        match self {
            Self::Mesh => None,
            Self::Tenant(tenant) => Some(tenant),
        }
    }

    /// Whether these defaults apply to the services of a tenant.
    pub fn includes(&self, tenant: &Tenant) -> bool {
        match self {
            Self::Mesh => true,
            Self::Tenant(own) => own == tenant,
        }
    }
}

/// Stands for the mesh; not a valid tenant name.
const MESH: &str = "*";

impl fmt::Display for DefaultsScope {
    /// Formats the scope as the last segment of its record key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh => f.write_str(MESH),
            Self::Tenant(tenant) => tenant.fmt(f),
        }
    }
}

impl FromStr for DefaultsScope {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            MESH => Ok(Self::Mesh),
            tenant => tenant.parse().map(Self::Tenant),
        }
    }
}

impl Locality {
    /// Whether the rings are the default rings.
    pub fn has_default_rings(&self) -> bool {
        self.rings.is_empty() || self.rings == Self::default_rings()
    }
}
