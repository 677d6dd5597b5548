use std::sync::{Mutex, MutexGuard, PoisonError};

use fairmesh_rib::follower::FollowerState;
use fairmesh_wire::transport::{Address, Channel, Transport, connect_channel_lazy};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::lease_index::LeaseIndex;

/// The connection that all lease sets of one lookaside share.
pub(super) struct LookasideConnection {
    pub(super) channel: Channel,
    index: Mutex<LeaseIndex>,
    pub(super) connection: watch::Sender<FollowerState>,
    /// The caller's id.
    pub(super) client_id: String,
    /// How the caller connects.
    pub(super) transport: Transport,
    /// Channel whose receivers the renewal tasks hold, so that their end can be awaited. A task tracker would add
    /// four crates to the lean library.
    pub(super) renewals: watch::Sender<()>,
    /// Cancelled when the renewal tasks must end.
    pub(super) closing: CancellationToken,
}

impl LookasideConnection {
    /// Creates the connection to the lookaside at an address. The first call connects.
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

    /// Records a response of the lookaside, or the reason why there was none.
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
