//! The validated form of documents, and the records into which they are written.

use crate::{
    Authorization, DefaultAuthorization, DefaultsScope, Endpoint, GatewayBackend, GatewayQuota,
    GatewayService, Hosts, Label, Policy, PolicyDefaults, Record, RecordKey, Regions, RoundTrips, Service,
    ServiceName, ShardMap, Tenant, WorkloadEntry, access::RoleBinding,
};

use super::{
    AuthorizationDocumentSpec, Document, EndpointsSpec, GatewayBackendSpec, GatewayQuotaSpec,
    GatewayServiceSpec, HostsSpec, PolicyDefaultsSpec, PolicySpec, RoleBindingSpec, ServiceSpec,
    ShardMapSpec, TopologySpec, WorkloadSpec,
};

/// The validated form of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a file has few, and nothing stores them")]
pub enum Resource {
    /// The declaration of a service.
    Service(ServiceName, Service),
    /// How calls to a service are routed and protected.
    Policy(ServiceName, Policy),
    /// Defaults for the policies of a tenant or of the mesh.
    PolicyDefaults(DefaultsScope, PolicyDefaults),
    /// Regions and the round trips between them.
    Topology(Regions, RoundTrips),
    /// Host types and their speeds.
    Hosts(Hosts),
    /// The assignment of keys of a service to replicas. The version is 0 if the document has none.
    ShardMap(ServiceName, ShardMap),
    /// Endpoints of a service.
    Endpoints(ServiceName, Vec<Endpoint>),
    /// Which programs may have the identity of a service.
    Workload(ServiceName, WorkloadEntry),
    /// Which callers may use a service.
    ServiceAuthorization(ServiceName, Authorization),
    /// The default for services without rules.
    Authorization(DefaultAuthorization),
    /// A role and the subjects that have it.
    RoleBinding(Label, RoleBinding),
    /// A gateway backend.
    GatewayBackend(Label, GatewayBackend),
    /// How a service uses a gateway.
    GatewayService(ServiceName, GatewayService),
    /// The limits of a tenant at a gateway.
    GatewayQuota(Tenant, GatewayQuota),
}

impl Resource {
    /// The document's kind and name. The name is empty for singletons of the mesh.
    pub fn kind_and_name(&self) -> (&'static str, String) {
        match self {
            Self::Service(name, _) => ("Service", name.to_string()),
            Self::Policy(name, _) => ("Policy", name.to_string()),
            Self::PolicyDefaults(scope, _) => {
                ("PolicyDefaults", scope.tenant().map(ToString::to_string).unwrap_or_default())
            }
            Self::Topology(..) => ("Topology", String::new()),
            Self::Hosts(_) => ("Hosts", String::new()),
            Self::ShardMap(name, _) => ("ShardMap", name.to_string()),
            Self::Endpoints(name, _) => ("Endpoints", name.to_string()),
            Self::Workload(name, _) => ("Workload", name.to_string()),
            Self::ServiceAuthorization(name, _) => ("Authorization", name.to_string()),
            Self::Authorization(_) => ("Authorization", String::new()),
            Self::RoleBinding(name, _) => ("RoleBinding", name.to_string()),
            Self::GatewayBackend(name, _) => ("GatewayBackend", name.to_string()),
            Self::GatewayService(name, _) => ("GatewayService", name.to_string()),
            Self::GatewayQuota(tenant, _) => ("GatewayQuota", tenant.to_string()),
        }
    }

    /// The records of the resource, with their keys. Empty for shard maps and endpoints, whose records the registry
    /// writes.
    pub fn records(&self) -> Vec<(RecordKey, Record)> {
        match self {
            Self::Service(name, service) => vec![(RecordKey::Service(name.clone()), service.clone().into())],
            Self::Policy(name, policy) => vec![(RecordKey::Policy(name.clone()), policy.clone().into())],
            Self::PolicyDefaults(scope, defaults) => {
                vec![(RecordKey::PolicyDefaults(scope.clone()), defaults.clone().into())]
            }
            Self::Topology(regions, round_trips) => vec![
                (RecordKey::Regions, regions.clone().into()),
                (RecordKey::RoundTrips, round_trips.clone().into()),
            ],
            Self::Hosts(hosts) => vec![(RecordKey::Hosts, hosts.clone().into())],
            Self::Workload(name, entry) => vec![(RecordKey::Workload(name.clone()), entry.clone().into())],
            Self::ServiceAuthorization(name, rules) => {
                vec![(RecordKey::Authorization(name.clone()), rules.clone().into())]
            }
            Self::Authorization(default) => vec![(RecordKey::DefaultAuthorization, (*default).into())],
            Self::RoleBinding(name, binding) => {
                vec![(RecordKey::RoleBinding(name.clone()), binding.clone().into())]
            }
            Self::GatewayBackend(name, backend) => {
                vec![(RecordKey::GatewayBackend(name.clone()), backend.clone().into())]
            }
            Self::GatewayService(name, service) => {
                vec![(RecordKey::GatewayService(name.clone()), service.clone().into())]
            }
            Self::GatewayQuota(tenant, quota) => {
                vec![(RecordKey::GatewayQuota(tenant.clone()), (*quota).into())]
            }
            Self::ShardMap(..) | Self::Endpoints(..) => Vec::new(),
        }
    }
}

impl From<&Resource> for Document {
    /// The document from which `validate` returns this value.
    fn from(resource: &Resource) -> Self {
        match resource {
            Resource::Service(name, service) => Self::Service(ServiceSpec::of(name, service)),
            Resource::Policy(name, policy) => Self::Policy(PolicySpec::of(name, policy)),
            Resource::PolicyDefaults(scope, defaults) => {
                Self::PolicyDefaults(PolicyDefaultsSpec::of(scope, defaults))
            }
            Resource::Topology(regions, round_trips) => {
                Self::Topology(TopologySpec::of(regions, round_trips))
            }
            Resource::Hosts(hosts) => Self::Hosts(HostsSpec::of(hosts)),
            Resource::ShardMap(name, map) => Self::ShardMap(ShardMapSpec::of(name, map)),
            Resource::Endpoints(name, endpoints) => Self::Endpoints(EndpointsSpec::of(name, endpoints)),
            Resource::Workload(name, entry) => Self::Workload(WorkloadSpec::of(name, entry)),
            Resource::ServiceAuthorization(name, rules) => {
                Self::Authorization(AuthorizationDocumentSpec::of(name, rules))
            }
            Resource::Authorization(default) => {
                Self::Authorization(AuthorizationDocumentSpec::of_default(*default))
            }
            Resource::RoleBinding(name, binding) => Self::RoleBinding(RoleBindingSpec::of(name, binding)),
            Resource::GatewayBackend(name, backend) => {
                Self::GatewayBackend(GatewayBackendSpec::of(name, backend))
            }
            Resource::GatewayService(name, service) => {
                Self::GatewayService(GatewayServiceSpec::of(name, service))
            }
            Resource::GatewayQuota(tenant, quota) => Self::GatewayQuota(GatewayQuotaSpec::of(tenant, quota)),
        }
    }
}
