//! Clients and services, with their message limits.

use crate::{
    handshake::VersionedChannel,
    v1::{
        admin_client::AdminClient,
        admin_server::{Admin, AdminServer},
        authority_client::AuthorityClient,
        authority_server::{Authority, AuthorityServer},
        checker_client::CheckerClient,
        checker_server::{Checker, CheckerServer},
        identity_client::IdentityClient,
        identity_server::{Identity, IdentityServer},
        imbalance_client::ImbalanceClient,
        imbalance_server::{Imbalance, ImbalanceServer},
        quota_client::QuotaClient,
        quota_server::{Quota, QuotaServer},
        registry_client::RegistryClient,
        registry_server::{Registry, RegistryServer},
        rib_client::RibClient,
        rib_server::{Rib, RibServer},
        traffic_planner_client::TrafficPlannerClient,
        traffic_planner_server::{TrafficPlanner, TrafficPlannerServer},
        workload_client::WorkloadClient,
        workload_server::{Workload, WorkloadServer},
    },
};

/// The longest message in either direction, in bytes. The largest legal ones, a batch and a part of a snapshot, take
/// less than half.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;

macro_rules! limited {
    ($($(#[$doc:meta])* $server:ident, $client:ident: $trait:ident, $service:ident, $stub:ident;)*) => {$(
        $(#[$doc])*
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
    /// The RIB with [`MAX_MESSAGE`] both ways.
    rib_server, rib_client: Rib, RibServer, RibClient;
    /// The registry with [`MAX_MESSAGE`] both ways.
    registry_server, registry_client: Registry, RegistryServer, RegistryClient;
    /// Health checkers with [`MAX_MESSAGE`] both ways.
    checker_server, checker_client: Checker, CheckerServer, CheckerClient;
    /// Administration with [`MAX_MESSAGE`] both ways.
    admin_server, admin_client: Admin, AdminServer, AdminClient;
    /// Usage and waste with [`MAX_MESSAGE`] both ways.
    imbalance_server, imbalance_client: Imbalance, ImbalanceServer, ImbalanceClient;
    /// Limits of a whole mesh with [`MAX_MESSAGE`] both ways.
    quota_server, quota_client: Quota, QuotaServer, QuotaClient;
    /// The planner of region tables with [`MAX_MESSAGE`] both ways.
    traffic_planner_server, traffic_planner_client: TrafficPlanner, TrafficPlannerServer, TrafficPlannerClient;
    /// Issuance of certificates with [`MAX_MESSAGE`] both ways.
    identity_server, identity_client: Identity, IdentityServer, IdentityClient;
    /// Operation of the certificate authority with [`MAX_MESSAGE`] both ways.
    authority_server, authority_client: Authority, AuthorityServer, AuthorityClient;
    /// Certificates of local programs with [`MAX_MESSAGE`] both ways.
    workload_server, workload_client: Workload, WorkloadServer, WorkloadClient;
}
