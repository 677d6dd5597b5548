use std::sync::{Mutex, MutexGuard, PoisonError};

use fairmesh_rib::follower::FollowerState;
use fairmesh_wire::transport::{Address, Channel, Transport, connect_channel_lazy};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::index::LeaseIndex;

/// The connection that all lease sets of one lookaside share.
pub(super) struct LookasideConnection {
    pub(super) channel: Channel,
    index: Mutex<LeaseIndex>,
    pub(super) connection: watch::Sender<FollowerState>,
    /// The caller's id.
    pub(super) client_id: String,
    /// How the caller connects.
    pub(super) transport: Transport,
    /// Each task that renews leases has a receiver. A tracker of tasks would bring four crates into the lean library.
    pub(super) renewals: watch::Sender<()>,
    /// Whether these tasks end.
    pub(super) closing: CancellationToken,
}

impl LookasideConnection {
    /// Of the lookaside at an address, which is connected to by the first call.
    pub(super) fn new(
        transport: &Transport,
        connection: FollowerState,
        address: &Address,
        client_id: String,
    ) -> Self {
        Self {
            channel: connect_channel_lazy(transport, address),
            index: Mutex::default(),
            connection: watch::Sender::new(connection),
            client_id,
            transport: transport.clone(),
            renewals: watch::Sender::default(),
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, LeaseIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a response of the lookaside, or why there was none.
    pub(super) fn record_response(&self, error: Option<String>) {
        self.connection.send_modify(|state| {
            let connected = error.is_none();
            if state.connected != connected {
                state.since = Instant::now();
            }
            state.failures = if connected { 0 } else { state.failures.saturating_add(1) };
            (state.connected, state.error) = (connected, error);
        });
    }
}
