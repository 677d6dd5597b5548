//! gRPC clients and services with their message size limits.

#[cfg(feature = "server")]
use crate::v1::{
    admin_server::{Admin, AdminServer},
    authority_server::{Authority, AuthorityServer},
    checker_server::{Checker, CheckerServer},
    identity_server::{Identity, IdentityServer},
    imbalance_server::{Imbalance, ImbalanceServer},
    quota_server::{Quota, QuotaServer},
    registry_server::{Registry, RegistryServer},
    rib_server::{Rib, RibServer},
    signals_server::{Signals, SignalsServer},
    traffic_planner_server::{TrafficPlanner, TrafficPlannerServer},
    workload_server::{Workload, WorkloadServer},
};
use crate::{
    handshake::VersionedChannel,
    v1::{
        admin_client::AdminClient, authority_client::AuthorityClient, checker_client::CheckerClient,
        identity_client::IdentityClient, imbalance_client::ImbalanceClient, quota_client::QuotaClient,
        registry_client::RegistryClient, rib_client::RibClient, signals_client::SignalsClient,
        traffic_planner_client::TrafficPlannerClient, workload_client::WorkloadClient,
    },
};

/// Maximum message size in either direction, in bytes. The largest valid messages, a batch and a part of a snapshot,
/// take less than half.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;

macro_rules! limited {
    ($($(#[$doc:meta])* $server:ident, $client:ident: $trait:ident, $service:ident, $stub:ident;)*) => {$(
        $(#[$doc])*
        #[cfg(feature = "server")]
        pub fn $server<T: $trait>(service: T) -> $service<T> {
            $service::new(service).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)
        }

        $(#[$doc])*
        pub fn $client(channel: VersionedChannel) -> $stub<VersionedChannel> {
            $stub::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)
        }
    )*};
}

limited! {
    /// The RIB, limited to [`MAX_MESSAGE`] in both directions.
    rib_server, rib_client: Rib, RibServer, RibClient;
    /// The registry, limited to [`MAX_MESSAGE`] in both directions.
    registry_server, registry_client: Registry, RegistryServer, RegistryClient;
    /// The service for health checkers, limited to [`MAX_MESSAGE`] in both directions.
    checker_server, checker_client: Checker, CheckerServer, CheckerClient;
    /// Administration, limited to [`MAX_MESSAGE`] in both directions.
    admin_server, admin_client: Admin, AdminServer, AdminClient;
    /// Reports of processes, limited to [`MAX_MESSAGE`] in both directions.
    signals_server, signals_client: Signals, SignalsServer, SignalsClient;
    /// Reports of capacity wasted by imbalance, limited to [`MAX_MESSAGE`] in both directions.
    imbalance_server, imbalance_client: Imbalance, ImbalanceServer, ImbalanceClient;
    /// Mesh-wide limits, limited to [`MAX_MESSAGE`] in both directions.
    quota_server, quota_client: Quota, QuotaServer, QuotaClient;
    /// The planner of region tables, limited to [`MAX_MESSAGE`] in both directions.
    traffic_planner_server, traffic_planner_client: TrafficPlanner, TrafficPlannerServer, TrafficPlannerClient;
    /// Issuance of certificates, limited to [`MAX_MESSAGE`] in both directions.
    identity_server, identity_client: Identity, IdentityServer, IdentityClient;
    /// Operation of the certificate authority, limited to [`MAX_MESSAGE`] in both directions.
    authority_server, authority_client: Authority, AuthorityServer, AuthorityClient;
    /// Certificates of local programs, limited to [`MAX_MESSAGE`] in both directions.
    workload_server, workload_client: Workload, WorkloadServer, WorkloadClient;
}
