use std::{sync::Arc, time::Duration};

use fairmesh_connections::EndpointPool;
use fairmesh_model::ServiceName;
use fairmesh_rib::follower::FollowerState;
use tokio::sync::watch;

use crate::{
    call::Clock,
    discovery::{Resolver, Subscription},
    lookaside::Leases,
};

/// The source of a mesh's service states.
#[derive(Debug)]
pub(crate) enum Source {
    /// Records of an agent or a control plane.
    Records(Resolver<Arc<EndpointPool>>),
    /// Leases of a lookaside.
    Leases(Leases),
}

impl Source {
    /// The subscription of a service.
    pub(crate) fn subscription(&self, name: &ServiceName) -> Arc<Subscription<Arc<EndpointPool>>> {
        match self {
            Self::Records(resolver) => resolver.subscription(name),
            Self::Leases(leases) => leases.subscription(name),
        }
    }

    /// The leases, if calls are decided by leases.
    #[inline]
    pub(crate) fn leases(&self) -> Option<&Leases> {
        match self {
            Self::Records(_) => None,
            Self::Leases(leases) => Some(leases),
        }
    }

    /// Clock used for picks.
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Records(resolver) => resolver.clock(),
            Self::Leases(_) => Clock::start(),
        }
    }

    /// Waits as [`Resolver::first_snapshot`] does; returns immediately with a lookaside.
    pub(crate) async fn first_snapshot(&self) {
        match self {
            Self::Records(resolver) => resolver.first_snapshot().await,
            Self::Leases(_) => {}
        }
    }

    /// Closes as [`Resolver::close`] or [`Leases::close`] does.
    pub(crate) async fn close(&self) {
        match self {
            Self::Records(resolver) => resolver.close().await,
            Self::Leases(leases) => leases.close().await,
        }
    }

    /// Returns [`Resolver::health_panics`]; with a lookaside 0, since the lookaside itself applies verdicts.
    pub(crate) fn health_panics(&self) -> u64 {
        match self {
            Self::Records(resolver) => resolver.health_panics(),
            Self::Leases(_) => 0,
        }
    }

    /// The state of the connection to the agent, or to the lookaside.
    pub(crate) fn state(&self) -> watch::Receiver<FollowerState> {
        match self {
            Self::Records(resolver) => resolver.state(),
            Self::Leases(leases) => leases.state(),
        }
    }

    /// Time since the data was last confirmed.
    pub(crate) fn data_age(&self) -> Duration {
        match self {
            Self::Records(resolver) => resolver.data_age(),
            Self::Leases(leases) => leases.data_age(),
        }
    }
}
