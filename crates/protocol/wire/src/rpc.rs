//! Clients and services, with their message limits.

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

/// The longest message in either direction, in bytes. The largest legal ones, a batch and a part of a snapshot, take
/// less than half.
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
    /// The RIB with [`MAX_MESSAGE`] both ways.
    rib_server, rib_client: Rib, RibServer, RibClient;
    /// The registry with [`MAX_MESSAGE`] both ways.
    registry_server, registry_client: Registry, RegistryServer, RegistryClient;
    /// Health checkers with [`MAX_MESSAGE`] both ways.
    checker_server, checker_client: Checker, CheckerServer, CheckerClient;
    /// Administration with [`MAX_MESSAGE`] both ways.
    admin_server, admin_client: Admin, AdminServer, AdminClient;
    /// Reports of processes with [`MAX_MESSAGE`] both ways.
    signals_server, signals_client: Signals, SignalsServer, SignalsClient;
    /// Waste by imbalance with [`MAX_MESSAGE`] both ways.
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
