//! Documents as written by users, in YAML or JSON. Each document describes one object and is distinguished by `kind`.
//!
//! A spec keeps strings as written, so that every error names its field. `validate` returns the validated value that
//! routers use, and `of` converts back, omitting defaults. Validation during deserialisation was rejected, because
//! serde errors have neither a field's path nor a separate hint.

mod access;
mod authorization;
mod balancing;
mod conditions;
mod endpoints;
mod gateway;
mod health;
mod hosts;
mod key_source;
mod policy;
mod policy_defaults;
mod resource;
mod route;
mod route_actions;
mod route_matches;
mod service;
mod shards;
mod topology;
mod traffic;
mod value_text;
mod workload;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::duration::{read_duration, write_duration};
pub use access::RoleBindingSpec;
pub use authorization::{AuthorizationDocumentSpec, AuthorizationSpec, DefaultAuthorizationSpec, RuleSpec};
pub use balancing::{BalancingSpec, OutliersSpec, ScoreSpec};
pub use conditions::{AcceptedTokensSpec, ClaimSpec, ConditionSpec};
pub use endpoints::{EndpointSpec, EndpointsSpec};
pub use gateway::{GatewayBackendSpec, GatewayQuotaSpec, GatewayServiceSpec};
pub use health::{GrpcProbeSpec, HealthCheckSpec, HttpProbeSpec, TcpProbeSpec};
pub use hosts::{HostPrefixSpec, HostTypeSpec, HostsSpec};
pub use key_source::{KeySpec, KeySpecs};
pub use policy::{LocalitySpec, PolicySpec, RetriesSpec};
pub use policy_defaults::PolicyDefaultsSpec;
pub use resource::Resource;
pub use route::{BackendSpec, RouteSpec, WhenEmptySpec};
pub use route_actions::{
    AbortSpec, DelaySpec, EditsSpec, FaultInjectionSpec, HeadersSpec, HedgeSpec, LimitSpec, MirrorSpec,
    PathRewriteSpec, RedirectSpec, RewriteSpec,
};
pub use route_matches::{GrpcSpec, MatchSpec, PathSpec, TextSpec};
pub use service::ServiceSpec;
pub use shards::{IntervalSpec, ReplicaSpec, ShardMapSpec, ShardSpec};
pub use topology::{EgressPriceSpec, EgressSpec, RegionSpec, RoundTripSpec, TopologySpec};
pub use traffic::{LoadRingSpec, LoadSpec, SharesSpec, TrafficSpec};
pub use value_text::KeyText;
pub use workload::{ProgramSpec, WorkloadSpec};

use crate::Invalid;

/// Reads all fields of a document except `kind`.
pub trait ReadFields {
    /// Error returned if a field cannot be read.
    type Error;

    /// Reads the fields into `T`.
    ///
    /// # Errors
    /// If a field is unknown, missing or of another type.
    fn read<T: DeserializeOwned>(self) -> Result<T, Self::Error>;
}

macro_rules! documents {
    ($($(#[$doc:meta])* $kind:ident($spec:ident);)*) => {
        /// One document of a file.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "kind")]
        #[allow(clippy::large_enum_variant, reason = "a file has few, and nothing stores them")]
        pub enum Document {
            $($(#[$doc])* $kind($spec),)*
        }

        impl Document {
            /// All values of `kind`.
            pub const KINDS: &'static [&'static str] = &[$(stringify!($kind)),*];

            /// The value of `kind`.
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($kind),)*
                }
            }

            /// Reads a document of this kind; `None` if the kind is unknown.
            pub fn read<R: ReadFields>(kind: &str, fields: R) -> Option<Result<Self, R::Error>> {
                $(if kind == stringify!($kind) {
                    return Some(fields.read().map(Self::$kind));
                })*
                None
            }
        }
    };
}

documents! {
    /// The declaration of a service.
    Service(ServiceSpec);
    /// How calls to a service are routed and protected.
    Policy(PolicySpec);
    /// Defaults for the policies of a tenant or of the mesh.
    PolicyDefaults(PolicyDefaultsSpec);
    /// Regions and the round trips between them.
    Topology(TopologySpec);
    /// Host types and their speeds.
    Hosts(HostsSpec);
    /// The assignment of keys of a service to replicas.
    ShardMap(ShardMapSpec);
    /// Endpoints of a service.
    Endpoints(EndpointsSpec);
    /// Which programs may have the identity of a service.
    Workload(WorkloadSpec);
    /// Which callers may use a service, or the default for services without rules.
    Authorization(AuthorizationDocumentSpec);
    /// A role and the subjects that have it.
    RoleBinding(RoleBindingSpec);
    /// A gateway backend.
    GatewayBackend(GatewayBackendSpec);
    /// How a service uses a gateway.
    GatewayService(GatewayServiceSpec);
    /// The limits of a tenant at a gateway.
    GatewayQuota(GatewayQuotaSpec);
}

impl Document {
    /// Validates the document. The field of an error is a path within the document, such as `routes[0].match.path`.
    pub fn validate(&self) -> Result<Resource, Invalid> {
        Ok(match self {
            Self::Service(spec) => {
                let (name, service) = spec.validate()?;
                Resource::Service(name, service)
            }
            Self::Policy(spec) => {
                let (name, policy) = spec.validate()?;
                Resource::Policy(name, policy)
            }
            Self::PolicyDefaults(spec) => {
                let (scope, defaults) = spec.validate()?;
                Resource::PolicyDefaults(scope, defaults)
            }
            Self::Topology(spec) => {
                let (regions, round_trips) = spec.validate()?;
                Resource::Topology(regions, round_trips)
            }
            Self::Hosts(spec) => Resource::Hosts(spec.validate()?),
            Self::ShardMap(spec) => {
                let (name, map) = spec.validate()?;
                Resource::ShardMap(name, map)
            }
            Self::Endpoints(spec) => {
                let (name, endpoints) = spec.validate()?;
                Resource::Endpoints(name, endpoints)
            }
            Self::Workload(spec) => {
                let (name, entry) = spec.validate()?;
                Resource::Workload(name, entry)
            }
            Self::Authorization(spec) => spec.validate()?,
            Self::RoleBinding(spec) => {
                let (name, binding) = spec.validate()?;
                Resource::RoleBinding(name, binding)
            }
            Self::GatewayBackend(spec) => {
                let (name, backend) = spec.validate()?;
                Resource::GatewayBackend(name, backend)
            }
            Self::GatewayService(spec) => {
                let (name, service) = spec.validate()?;
                Resource::GatewayService(name, service)
            }
            Self::GatewayQuota(spec) => {
                let (tenant, quota) = spec.validate()?;
                Resource::GatewayQuota(tenant, quota)
            }
        })
    }
}
