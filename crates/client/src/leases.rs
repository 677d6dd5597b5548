//! Calls by leases of a lookaside, for programs on machines without an agent (ServiceRouter §2.1).
//!
//! Leased endpoints become a table like that of any other service, so that the same code balances, retries and keeps
//! connections. One [`Cell`] holds the leases of a service, or of a shard in a role: a call finds it by its key and counts
//! itself, and a task of the cell asks for new leases before the old ones have run out. Where the lookaside does not answer,
//! calls go on by what there is.

mod cell;
mod own;
mod places;
mod table;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::ServiceName;
use fairmesh_rib::follower::FollowerState;
use fairmesh_wire::transport::{Address, connect_channel_lazy};
use http::{Response, request::Parts};
use tokio::{sync::watch, time::Instant};
use tonic::transport::{Channel, Error};

pub(crate) use self::{cell::Cell, own::OwnLookasides};
use self::{cell::Wanted, places::Places};
use crate::{
    Body, CallContext, Fault,
    core::Subscription,
    send,
    service::Handle,
    transport::{Line, Outgoing},
};
use fairmesh_headers::WRONG_SHARD;

/// All leases of a mesh.
pub(crate) struct Leases(Arc<Shared>);

/// What the cells share.
struct Shared {
    channel: Channel,
    places: Mutex<Places>,
    state: watch::Sender<FollowerState>,
    /// The caller's id.
    client_id: String,
}

impl Leases {
    /// Asks the lookaside at this address, which is reached with the first call.
    pub(crate) fn new(address: Address, client_id: String) -> Result<Self, Error> {
        let state = FollowerState {
            connected: false,
            since: Instant::now(),
            failures: 0,
            location: None,
            store: None,
            address: Some(address.clone()),
            error: None,
        };
        let channel = connect_channel_lazy(&address)?;
        let (places, state) = (Mutex::default(), watch::Sender::new(state));
        Ok(Self(Arc::new(Shared { channel, places, state, client_id })))
    }

    /// The leases of a service that is called without a key.
    pub(crate) fn subscription(&self, name: &ServiceName) -> Arc<Subscription<Arc<Line>>> {
        let wanted = Wanted { service: name.clone(), role: None, key: None };
        Arc::clone(&self.cell(wanted).subscription)
    }

    /// Makes one call by the leases for its key and role. A server that does not hold its shard any more says that they are
    /// old; the answer is the caller's all the same, since the request is gone.
    pub(crate) async fn call(
        &self,
        handle: &Handle,
        parts: &mut Parts,
        body: &mut Outgoing,
    ) -> Result<Response<Body>, Fault> {
        let context = handle.context(&parts.headers)?.into_owned();
        let cell = self.called(handle.subscription.name(), &context);
        let handle = Handle { subscription: Arc::clone(&cell.subscription), ..handle.clone() };
        let answer = send::call(&handle, parts, body).await?;
        if answer.headers().contains_key(&WRONG_SHARD) {
            cell.expire();
        }
        Ok(answer)
    }

    /// The leases for a call, which begins now.
    pub(crate) fn called(&self, name: &ServiceName, context: &CallContext) -> Arc<Cell> {
        let cell = self.cell(Wanted { service: name.clone(), role: context.role.clone(), key: context.key });
        cell.count();
        cell
    }

    fn cell(&self, wanted: Wanted) -> Arc<Cell> {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = places.find(&wanted) {
            return cell;
        }
        let cell = Arc::new(Cell::new(wanted.service.clone()));
        places.put(wanted.clone(), Arc::clone(&cell));
        drop(places);
        tokio::spawn(cell::follow(Arc::downgrade(&self.0), &cell, wanted));
        cell
    }

    /// How the connection stands, as of the last answer.
    pub(crate) fn state(&self) -> watch::Receiver<FollowerState> {
        self.0.state.subscribe()
    }

    /// Whether the lookaside was asked and did not answer, the last time.
    fn is_lost(&self) -> bool {
        let state = self.0.state.borrow();
        !state.connected && state.failures > 0
    }

    /// How long the lookaside has not answered.
    pub(crate) fn data_age(&self) -> Duration {
        let state = self.0.state.borrow();
        if state.connected { Duration::ZERO } else { state.since.elapsed() }
    }
}

impl Shared {
    /// Keeps whether the lookaside answered.
    fn heard(&self, error: Option<String>) {
        self.state.send_modify(|state| {
            let connected = error.is_none();
            if state.connected != connected {
                state.since = Instant::now();
            }
            state.failures = if connected { 0 } else { state.failures.saturating_add(1) };
            (state.connected, state.error) = (connected, error);
        });
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("state", &self.0.state).finish_non_exhaustive()
    }
}
