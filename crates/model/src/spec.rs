//! What a person writes: one document a thing, told apart by `kind`, in YAML or JSON.
//!
//! A spec holds texts just as they were written, so that every refusal can name the field that it is about; `plan`
//! makes the validated value that routers read, and `of` goes back, leaving out what equals the default. The
//! alternative, validating while deserialising, was rejected: serde keeps neither the path of a field nor a hint apart
//! from the message.

mod actions;
mod balancing;
mod endpoints;
mod health;
mod hosts;
mod matches;
mod policy;
mod route;
mod service;
mod shards;
mod text;
mod topology;

use serde::{Deserialize, Serialize};

pub use actions::{
    AbortSpec, DelaySpec, EditsSpec, FaultSpec, HeadersSpec, HedgeSpec, LimitSpec, MirrorSpec,
    PathRewriteSpec, RedirectSpec, RewriteSpec,
};
pub use balancing::{BalancingSpec, OutliersSpec, ScoreSpec};
pub use endpoints::{EndpointSpec, EndpointsSpec};
pub use health::{GrpcProbeSpec, HealthCheckSpec, HttpProbeSpec, TcpProbeSpec};
pub use hosts::{HostPrefixSpec, HostTypeSpec, HostsSpec};
pub use matches::{GrpcSpec, MatchSpec, PathSpec, TextSpec};
pub use policy::{KeySpec, LocalitySpec, PolicySpec, RetriesSpec};
pub use route::{RouteSpec, TargetSpec};
pub use service::ServiceSpec;
pub use shards::{IntervalSpec, ReplicaSpec, ShardMapSpec, ShardSpec};
pub use text::{KeyText, read_duration, write_duration};
pub use topology::{RegionSpec, RoundTripSpec, TopologySpec};

use crate::{Endpoint, Hosts, Invalid, Policy, Regions, RoundTrips, Service, ServiceName, ShardMap};

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
#[allow(clippy::large_enum_variant, reason = "a file holds few, and nothing keeps them")]
pub enum Document {
    /// What a service is.
    Service(ServiceSpec),
    /// How calls to a service are routed and protected.
    Policy(PolicySpec),
    /// Regions and the round trips between them.
    Topology(TopologySpec),
    /// How fast the fleet's machines are.
    Hosts(HostsSpec),
    /// Which replicas hold which keys of a service.
    ShardMap(ShardMapSpec),
    /// Endpoints of a service.
    Endpoints(EndpointsSpec),
}

/// What validation made of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a file holds few, and nothing keeps them")]
pub enum Plan {
    /// What a service is.
    Service(ServiceName, Service),
    /// How calls to a service are routed and protected.
    Policy(ServiceName, Policy),
    /// Regions and the round trips between them.
    Topology(Regions, RoundTrips),
    /// How fast the fleet's machines are.
    Hosts(Hosts),
    /// Which replicas hold which keys of a service; version 0 where the document names none.
    ShardMap(ServiceName, ShardMap),
    /// Endpoints of a service.
    Endpoints(ServiceName, Vec<Endpoint>),
}

impl Document {
    /// Every value of `kind`, as written.
    pub const KINDS: [&str; 6] = ["Service", "Policy", "Topology", "Hosts", "ShardMap", "Endpoints"];

    /// The value of `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::Policy(_) => "Policy",
            Self::Topology(_) => "Topology",
            Self::Hosts(_) => "Hosts",
            Self::ShardMap(_) => "ShardMap",
            Self::Endpoints(_) => "Endpoints",
        }
    }

    /// Validates the document; the error's field is a path within it, such as `routes[0].match.path`.
    pub fn plan(&self) -> Result<Plan, Invalid> {
        Ok(match self {
            Self::Service(spec) => {
                let (name, service) = spec.plan()?;
                Plan::Service(name, service)
            }
            Self::Policy(spec) => {
                let (name, policy) = spec.plan()?;
                Plan::Policy(name, policy)
            }
            Self::Topology(spec) => {
                let (regions, round_trips) = spec.plan()?;
                Plan::Topology(regions, round_trips)
            }
            Self::Hosts(spec) => Plan::Hosts(spec.plan()?),
            Self::ShardMap(spec) => {
                let (name, map) = spec.plan()?;
                Plan::ShardMap(name, map)
            }
            Self::Endpoints(spec) => {
                let (name, endpoints) = spec.plan()?;
                Plan::Endpoints(name, endpoints)
            }
        })
    }
}

impl From<&Plan> for Document {
    /// The document that `plan` makes this of.
    fn from(plan: &Plan) -> Self {
        match plan {
            Plan::Service(name, service) => Self::Service(ServiceSpec::of(name, service)),
            Plan::Policy(name, policy) => Self::Policy(PolicySpec::of(name, policy)),
            Plan::Topology(regions, round_trips) => Self::Topology(TopologySpec::of(regions, round_trips)),
            Plan::Hosts(hosts) => Self::Hosts(HostsSpec::of(hosts)),
            Plan::ShardMap(name, map) => Self::ShardMap(ShardMapSpec::of(name, map)),
            Plan::Endpoints(name, endpoints) => Self::Endpoints(EndpointsSpec::of(name, endpoints)),
        }
    }
}

#[cfg(test)]
mod tests;
