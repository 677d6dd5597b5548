//! The table of record kinds.
//!
//! A row has a kind's key, value and rules. Keys, access control, history and the audit log are derived from the
//! table. `wire` passes a macro to [`record_kinds`](crate::record_kinds) and gets a codec for each kind; `fuzz` gets
//! a key for each kind. An incomplete row does not compile. A trait implemented by each kind was rejected: readers
//! match on one enum of keys, and a trait cannot list its implementors.

use crate::{
    Authorization, DefaultAuthorization, ElectedChecker, Endpoint, FederatedDomains, GatewayBackend,
    GatewayQuota, GatewayService, Hosts, JoinedAgent, MeasuredDistances, Placement, Policy, PolicyDefaults,
    RegionDrain, RegionTable, Regions, Revocations, RoundTrips, Service, ShardMove, TokenIssuers,
    TrustBundle, Verdict, WorkloadEntry, access::RoleBinding,
};

/// Calls a macro with the rows of all kinds.
///
/// A `service` row declares a record of a service. Its key is `/t/{tenant}/{folder}/{service}`, followed by the
/// fields of the key. A `mesh` row declares a record of the whole mesh, at `/g/`. The value has the name of its
/// protobuf message.
#[macro_export]
macro_rules! record_kinds {
    ($rows:ident) => {
        $rows! {
            service {
                /// The declaration of a service.
                Service at "services" => Service(Service) {
                    history: Kept("services"), readers: Callers, writers: Operators, is_applied: true,
                    audit: Security, list: Services
                }
                /// An instance of a service.
                Endpoint(region: Region, instance: InstanceId) at "endpoints" => Endpoint(Endpoint) {
                    history: No, readers: Callers, writers: Operators, is_applied: false,
                    audit: Activity, list: Endpoints
                }
                /// A verdict of active health checks.
                Health(region: Region, instance: InstanceId) at "health" => Verdict(Verdict) {
                    history: No, readers: Callers, writers: Operators, is_applied: false, audit: Omitted, list: Health
                }
                /// How calls to a service are routed and protected.
                Policy at "policies" => Policy(Policy) {
                    history: Kept("policies"), readers: Callers, writers: Operators, is_applied: true,
                    audit: Security, list: Policies
                }
                /// A move of a shard. Stored outside `shards/`, since routers do not need it.
                Move(shard: ShardId) at "moves" => Move(ShardMove) {
                    history: No, readers: Viewers, writers: Operators, is_applied: false, audit: Activity, list: Moves
                }
                /// How a region's calls are divided among regions.
                RegionTable(region: Region) at "tables" => RegionTable(RegionTable) {
                    history: No, readers: Callers, writers: Operators, is_applied: false, audit: Omitted, list: Tables
                }
                /// The programs that may have the identity of a service.
                Workload at "workloads" => Workload(WorkloadEntry) {
                    history: Kept("workloads"), readers: Viewers, writers: Delegates, is_applied: true,
                    audit: Security, list: Workloads
                }
                /// Callers that may use a service. Routers and servers do not read this record, since the policy has
                /// a copy.
                Authorization at "authorizations" => Authorization(Authorization) {
                    history: Kept("authorizations"), readers: Viewers, writers: Authorizers, is_applied: true,
                    audit: Security, list: Authorization
                }
                /// How a service uses a gateway.
                GatewayService at "gateway-services" => GatewayService(GatewayService) {
                    history: Kept("gatewayServices"), readers: Viewers, writers: Operators, is_applied: true,
                    audit: Security, list: GatewayServices
                }
                /// The backends of a gateway that serve a service. Routers do not need it; nodes and gateways read it. The controller
                /// writes it, and an administrator who moves or throttles a service.
                Placement at "placements" => Placement(Placement) {
                    history: No, readers: Viewers, writers: Admins, is_applied: true, audit: Security,
                    list: GatewayServices
                }
            }
            mesh {
                /// The regions.
                Regions at ["topology", "regions"] => Regions(Regions) {
                    history: Kept("regions"), readers: Everyone, writers: Admins, is_applied: true,
                    audit: Security, list: Regions
                }
                /// The declared round trips between regions.
                RoundTrips at ["topology", "rtt"] => RoundTrips(RoundTrips) {
                    history: Kept("roundTrips"), readers: Everyone, writers: Admins, is_applied: true,
                    audit: Security, list: Regions
                }
                /// The distances that a region measured to others.
                MeasuredDistances(region: Region) at ["topology", "measured"] => MeasuredDistances(MeasuredDistances) {
                    history: No, readers: Everyone, writers: Admins, is_applied: false, audit: Omitted, list: Regions
                }
                /// The host types and their speeds.
                Hosts at ["topology", "hosts"] => Hosts(Hosts) {
                    history: Kept("hosts"), readers: Everyone, writers: Admins, is_applied: true,
                    audit: Security, list: Hosts
                }
                /// A drain of a whole region. Stored outside `topology/`, since routers do not need it.
                RegionDrain(region: Region) at ["drains"] => RegionDrain(RegionDrain) {
                    history: No, readers: Everyone, writers: Admins, is_applied: false, audit: Security, list: Regions
                }
                /// The elected checker of a region. Servers accept its probes. Stored outside `topology/`, since
                /// routers do not need it.
                Checker(region: Region) at ["checkers"] => ElectedChecker(ElectedChecker) {
                    history: No, readers: Everyone, writers: Admins, is_applied: false,
                    audit: Security, list: Unlisted
                }
                /// The default authorization, for services without rules.
                DefaultAuthorization at ["authorization"] => DefaultAuthorization(DefaultAuthorization) {
                    history: Kept("authorization"), readers: Everyone, writers: Admins, is_applied: true,
                    audit: Security, list: Authorization
                }
                /// Defaults for policies. The key ends with the tenant's name, or with `*` for the defaults of the
                /// mesh.
                PolicyDefaults(scope: DefaultsScope) at ["policy-defaults"] => PolicyDefaults(PolicyDefaults) {
                    history: InAudit("policyDefaults"), readers: Everyone, writers: Operators, is_applied: true,
                    audit: Security, list: PolicyDefaults
                }
                /// A role and the subjects that have it.
                RoleBinding(name: Label) at ["roles"] => RoleBinding(RoleBinding) {
                    history: InAudit("roles"), readers: Viewers, writers: Admins, is_applied: true,
                    audit: Security, list: Roles
                }
                /// A gateway backend.
                GatewayBackend(name: Label) at ["gateway", "backends"] => GatewayBackend(GatewayBackend) {
                    history: InAudit("gatewayBackends"), readers: Everyone, writers: Admins, is_applied: true,
                    audit: Security, list: GatewayBackends
                }
                /// The limits of a tenant at a gateway.
                GatewayQuota(name: Tenant) at ["gateway-quotas"] => GatewayQuota(GatewayQuota) {
                    history: InAudit("gatewayQuotas"), readers: Viewers, writers: Admins, is_applied: true,
                    audit: Security, list: GatewayQuotas
                }
                /// The root certificates of the trust domain.
                TrustBundle at ["identity", "bundle"] => TrustBundle(TrustBundle) {
                    history: No, readers: Everyone, writers: Admins, is_applied: false,
                    audit: Security, list: Unlisted
                }
                /// The revoked certificates.
                Revocations at ["identity", "revocations"] => Revocations(Revocations) {
                    history: No, readers: Everyone, writers: Admins, is_applied: true, audit: Security, list: Unlisted
                }
                /// Federated trust domains whose certificates are verified.
                FederatedDomains at ["identity", "federation"] => FederatedDomains(FederatedDomains) {
                    history: No, readers: Everyone, writers: Admins, is_applied: true, audit: Security, list: Unlisted
                }
                /// The issuers of end user tokens that servers verify.
                TokenIssuers at ["identity", "issuers"] => TokenIssuers(TokenIssuers) {
                    history: No, readers: Everyone, writers: Admins, is_applied: true, audit: Security, list: Unlisted
                }
                /// An agent that joined the trust domain.
                JoinedAgent(name: Label) at ["identity", "agents"] => JoinedAgent(JoinedAgent) {
                    history: No, readers: Viewers, writers: Admins, is_applied: false, audit: Security, list: Unlisted
                }
            }
        }
    };
}

macro_rules! values {
    ($(
        $scope:ident { $(
            $(#[$doc:meta])*
            $key:ident $(($($field:tt)+))? at $at:tt => $value:ident($type:ident) $rules:tt
        )* }
    )*) => {
        /// The value of a record. Parts of shard maps are not included, since a map is encoded as a whole.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(
            clippy::large_enum_variant,
            reason = "values are read one at a time and destructured at once; nothing stores them"
        )]
        pub enum Record {
            $($($(#[$doc])* $value($type),)*)*
        }

        $($(
            impl From<$type> for Record {
                fn from(record: $type) -> Self {
                    Self::$value(record)
                }
            }
        )*)*
    };
}

crate::record_kinds!(values);
