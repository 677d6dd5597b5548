//! Where a mesh has its views from: records that it follows, or leases that a lookaside gives.

use std::{sync::Arc, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_rib::follower::FollowerState;
use tokio::sync::watch;

use crate::{
    core::{Resolver, Subscription},
    leases::Leases,
    transport::Line,
};

/// One of the two.
#[derive(Debug)]
pub(crate) enum Source {
    /// Records, of an agent or a control plane.
    Records(Resolver<Arc<Line>>),
    /// Leases.
    Leases(Leases),
}

impl Source {
    /// What is known of a service.
    pub(crate) fn subscription(&self, name: &ServiceName) -> Arc<Subscription<Arc<Line>>> {
        match self {
            Self::Records(resolver) => resolver.subscription(name),
            Self::Leases(leases) => leases.subscription(name),
        }
    }

    /// The leases, where calls go by them.
    #[inline]
    pub(crate) fn leases(&self) -> Option<&Leases> {
        match self {
            Self::Records(_) => None,
            Self::Leases(leases) => Some(leases),
        }
    }

    /// As [`Resolver::informed`]; a lookaside knows or does not answer.
    pub(crate) async fn informed(&self) {
        match self {
            Self::Records(resolver) => resolver.informed().await,
            Self::Leases(_) => {}
        }
    }

    /// As [`Resolver::health_panics`]; a lookaside heeds verdicts itself.
    pub(crate) fn health_panics(&self) -> u64 {
        match self {
            Self::Records(resolver) => resolver.health_panics(),
            Self::Leases(_) => 0,
        }
    }

    /// How the connection to the agent, or the lookaside, stands.
    pub(crate) fn state(&self) -> watch::Receiver<FollowerState> {
        match self {
            Self::Records(resolver) => resolver.state(),
            Self::Leases(leases) => leases.state(),
        }
    }

    /// How long ago what is known was last confirmed.
    pub(crate) fn data_age(&self) -> Duration {
        match self {
            Self::Records(resolver) => resolver.data_age(),
            Self::Leases(leases) => leases.data_age(),
        }
    }
}
