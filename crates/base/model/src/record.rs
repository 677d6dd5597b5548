mod revision;
mod rib_key;

use crate::{
    Authorization, DefaultAuthorization, Endpoint, FederatedDomains, Hosts, JoinedAgent, MeasuredDistances,
    Policy, RegionDrain, RegionTable, Regions, Revocations, RoundTrips, Service, ShardMove, TrustBundle,
    Verdict, WorkloadEntry, access::RoleBinding,
};

pub use revision::{Cursor, Revision, StoreId};
pub use rib_key::{ChunkHash, HistoryKind, MeshHistoryKind, Prefix, RecordKey, ShardPart, key_kind};

/// The value of a RIB key, except parts of shard maps, which are encoded as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "values are read one at a time and destructured at once; nothing stores them"
)]
pub enum Record {
    /// At `services/`.
    Service(Service),
    /// At `endpoints/`.
    Endpoint(Endpoint),
    /// At `policies/`.
    Policy(Policy),
    /// At `health/`.
    Verdict(Verdict),
    /// At `moves/`.
    Move(ShardMove),
    /// At `tables/`.
    RegionTable(RegionTable),
    /// At `drains/`.
    RegionDrain(RegionDrain),
    /// At `topology/regions`.
    Regions(Regions),
    /// At `topology/rtt`.
    RoundTrips(RoundTrips),
    /// At `topology/measured/`.
    MeasuredDistances(MeasuredDistances),
    /// At `topology/hosts`.
    Hosts(Hosts),
    /// At `identity/bundle`.
    TrustBundle(TrustBundle),
    /// At `identity/revocations`.
    Revocations(Revocations),
    /// At `identity/federation`.
    FederatedDomains(FederatedDomains),
    /// At `identity/agents/`.
    JoinedAgent(JoinedAgent),
    /// At `workloads/`.
    Workload(WorkloadEntry),
    /// At `authorizations/`.
    Authorization(Authorization),
    /// At `authorization`.
    DefaultAuthorization(DefaultAuthorization),
    /// At `roles/`.
    RoleBinding(RoleBinding),
}

impl From<Service> for Record {
    fn from(record: Service) -> Self {
        Self::Service(record)
    }
}

impl From<Endpoint> for Record {
    fn from(record: Endpoint) -> Self {
        Self::Endpoint(record)
    }
}

impl From<Policy> for Record {
    fn from(record: Policy) -> Self {
        Self::Policy(record)
    }
}
