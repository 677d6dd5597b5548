//! The client library behind a listener, for programs that cannot link it (S27).
//!
//! A request comes in, `service` finds out which service it is for, and from there on it is a call of `client` like any
//! other: the same records, the same picks, the same retries. What a proxy adds is what it owes to both sides as an
//! intermediary: headers that belong to one connection stay on it (`hops`), faults of the mesh become answers
//! (`answer`), and nothing that is under way is lost when it stops (`serve`).

mod access;
mod admin;
mod answer;
mod config;
mod decision;
mod error;
mod forward;
mod hops;
mod lean;
mod metrics;
mod rewound;
mod serve;
mod service;

use std::{future::Future, sync::Arc, time::Duration};

pub use access::{AccessLog, Form};
pub use config::{Limits, Listen, ProxyConfig};
pub use error::ProxyError;
use fairmesh_client::Mesh;
use forward::Forwarder;
use metrics::Metrics;
use serve::{Bound, Serving};
use service::Services;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long pages of the admin port may take at the end.
const LAST_PAGES: Duration = Duration::from_secs(1);

/// Runs a proxy until `shutdown` completes, then drains: listeners close at once, what is under way has
/// [`Limits::drain`] to end, and what has not by then is cut off.
///
/// It does not listen before every service that has a listener of its own can be decided, or has had
/// [`Limits::first_contact`] to be: a program that starts beside it must not find an empty table.
///
/// # Errors
/// When an address cannot be listened on, or the agent's address is malformed.
pub async fn run(
    config: ProxyConfig,
    mesh: Mesh,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ProxyError> {
    let ProxyConfig { listen, admin, limits, access_log } = config;
    let metrics = Arc::new(Metrics::default());
    let services = Arc::new(Services::new(mesh.clone()));
    let state = admin::State::new(mesh, Arc::clone(&services), Arc::clone(&metrics));
    let stopping = CancellationToken::new();
    let admin = admin::start(admin, state.clone(), stopping.clone()).await?;
    // Bound before the wait, so that an address that is taken is said at once.
    let bound = Bound::all(&listen).await?;
    services.first_contact(&listen, limits.first_contact).await;
    let forwarder = Arc::new(Forwarder::new(services, Arc::clone(&metrics), access_log));
    let serving = Serving::new(forwarder, limits);
    let connections = TaskTracker::new();
    for (bound, listen) in bound.into_iter().zip(listen) {
        tracing::info!(address = %bound.address, service = %listen.words(), "listening");
        connections.spawn(serving.clone().accept(bound, listen, stopping.clone(), connections.clone()));
    }
    state.set_ready(true);
    shutdown.await;
    state.set_ready(false);
    tracing::info!(connections = serving.open(), "draining");
    stopping.cancel();
    connections.close();
    connections.wait().await;
    if let Some(mut admin) = admin {
        // One that reads a page slowly, or asks for none, holds nobody up.
        let _ = tokio::time::timeout(LAST_PAGES, &mut admin).await;
        admin.abort();
    }
    Ok(())
}
