use std::{fmt, sync::Arc, time::Duration};

use fairmesh_connections::EndpointPool;
use fairmesh_model::ServiceName;
use fairmesh_rib::follower::FollowerState;
use fairmesh_wire::transport::{Address, Transport};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    lease_renewal,
    lease_set::{LeaseKey, LeaseSet},
    lookaside_connection::LookasideConnection,
};
use crate::{call::CallContext, discovery::Subscription};

/// Time limit for the last reports of a program that is ending.
pub(super) const LAST_REPORTS: Duration = Duration::from_secs(1);

/// All leases of one lookaside.
pub(crate) struct Leases(Arc<LookasideConnection>);

impl Leases {
    /// Creates the leases of the lookaside at this address. The first call connects to it.
    pub(crate) fn new(transport: &Transport, address: Address, client_id: String) -> Self {
        let state = FollowerState {
            connected: false,
            since: Instant::now(),
            failures: 0,
            location: None,
            store: None,
            address: Some(address.clone()),
            error: None,
        };
        Self(Arc::new(LookasideConnection::new(transport, state, &address, client_id)))
    }

    /// Returns the subscription for calls of a service without a key.
    pub(crate) fn subscription(&self, name: &ServiceName) -> Arc<Subscription<Arc<EndpointPool>>> {
        let key = LeaseKey { service: name.clone(), role: None, key: None };
        Arc::clone(&self.lease_set(key).subscription)
    }

    /// Returns the leases for a call that begins now.
    pub(crate) fn for_call(&self, name: &ServiceName, context: &CallContext) -> Arc<LeaseSet> {
        let key = LeaseKey { service: name.clone(), role: context.role.clone(), key: context.key };
        let set = self.lease_set(key);
        set.count_call();
        set
    }

    fn lease_set(&self, key: LeaseKey) -> Arc<LeaseSet> {
        let mut index = self.0.index();
        if let Some(set) = index.find(&key) {
            return set;
        }
        let set = Arc::new(LeaseSet::new(key.service.clone()));
        index.insert(key.clone(), Arc::clone(&set));
        drop(index);
        let (renewal, running) = (lease_renewal::run(&self.0, &set, key), self.0.renewals.subscribe());
        tokio::spawn(async move {
            renewal.await;
            drop(running);
        });
        set
    }

    /// Reports the results of the leases in use, because the lookaside counts calls by these reports. Leases are no
    /// longer renewed. Returns within a second.
    pub(crate) async fn close(&self) {
        self.stop();
        let _ = timeout(LAST_REPORTS, self.stopped()).await;
    }

    /// Starts [`close`](Self::close) without waiting.
    pub(super) fn stop(&self) {
        self.0.closing.cancel();
    }

    /// Completes once the last results are reported.
    pub(super) async fn stopped(&self) {
        self.0.renewals.closed().await;
    }

    /// State of the connection, as of the last response.
    pub(crate) fn state(&self) -> watch::Receiver<FollowerState> {
        self.0.connection.subscribe()
    }

    /// Whether the last request to the lookaside failed.
    pub(super) fn is_disconnected(&self) -> bool {
        let state = self.0.connection.borrow();
        !state.connected && state.failures > 0
    }

    /// Time for which the lookaside has not responded; zero while it responds.
    pub(crate) fn data_age(&self) -> Duration {
        let state = self.0.connection.borrow();
        if state.connected { Duration::ZERO } else { state.since.elapsed() }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("state", &self.0.connection).finish_non_exhaustive()
    }
}
