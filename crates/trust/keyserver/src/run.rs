use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_listen::{Limits, Listeners, listener_table};
use fairmesh_pages::AdminListener;
use fairmesh_wire::{
    keys::v1::key_server_server::KeyServerServer,
    transport::{Address, Transport, serve},
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tonic::service::Routes;

use crate::{
    KeyServerError, KeyStore,
    admin_pages::Pages,
    metrics::Metrics,
    service::{KeyService, MAX_MESSAGE},
};

/// Time limit for requests in progress when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of a key server.
#[derive(Debug)]
pub struct KeyServerConfig {
    /// How connections are accepted. The transport must have an identity.
    pub transport: Transport,
    /// Listening address for callers.
    pub listen: SocketAddr,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// The private keys, and the callers that may use them.
    pub keys: KeyStore,
    /// Maximum number of requests in progress; further requests are refused.
    pub max_requests: usize,
}

/// Prevents other processes of this user, and core dumps, from reading the memory of this process. Call it at
/// startup, before keys are read.
///
/// # Errors
/// When the operating system refuses.
pub fn protect_memory() -> Result<(), KeyServerError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| KeyServerError::Undumpable(error.into()))
}

/// Runs a key server until `shutdown` completes, and then waits for requests in progress.
///
/// # Errors
/// When the server cannot listen on an address, or serving fails.
pub async fn run(config: KeyServerConfig, shutdown: impl Future<Output = ()>) -> Result<(), KeyServerError> {
    let KeyServerConfig { transport, listen, admin, keys, max_requests } = config;
    let metrics = Arc::new(Metrics::new(keys.names()));
    let listeners = Listeners::default();
    let calls = listeners.acceptor(&listener_table::KEYSERVER_GRPC, Limits::calls());
    let listener = transport.bind(&Address::Tcp(listen.to_string())).await?.within(calls);
    let admin = AdminListener::bind_optional(admin, &listeners, &listener_table::KEYSERVER_HTTP).await?;
    let pages = Pages { metrics: Arc::clone(&metrics), listeners, transport };
    let admin = admin.map(|listener| listener.start(fairmesh_pages::router(Arc::new(pages))));
    tracing::info!(address = %listen, keys = ?keys, "the key server serves");
    let service = KeyServerServer::new(KeyService::new(keys, metrics, max_requests))
        .max_decoding_message_size(MAX_MESSAGE);
    let served = serve(Routes::new(service), listener, shutdown, DRAIN_TIMEOUT).await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    served.map_err(|error| KeyServerError::Serve(error.to_string()))
}
