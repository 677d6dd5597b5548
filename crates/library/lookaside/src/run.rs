use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::Mesh;
use fairmesh_listen::{self as listen, Listeners};
use fairmesh_pages::AdminListener;
use fairmesh_wire::{
    grpc_lookup::route_lookup_service_server::RouteLookupServiceServer,
    lookaside::v1::lookaside_server::LookasideServer,
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    LookasideConfig, LookasideError, admin_pages::Pages, caller_grants::Grants, connections::serve,
    picker::Picker, rls::RouteLookups, service::LookasideService,
};

/// Interval at which expired leases are ended.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum size of a caller's message, in bytes. A thousand results take far less.
const MAX_MESSAGE: usize = 64 * 1024;

/// Runs a lookaside until `shutdown` completes. Then sends GOAWAY to callers, and lets calls in flight end within
/// [`Limits::drain`](crate::Limits::drain).
///
/// Accepts no connection before it has routing information, from the agent or from the agent's copy on disk. Callers
/// then connect to another lookaside.
///
/// # Errors
/// An address cannot be listened on.
pub async fn run(
    config: LookasideConfig,
    mesh: Mesh,
    shutdown: impl Future<Output = ()>,
) -> Result<(), LookasideError> {
    let LookasideConfig { transport, upstreams, listen, admin, lease_terms, limits } = config;
    let grants = Grants::follow(upstreams, transport.clone());
    let picker = Arc::new(Picker::new(mesh.clone(), grants, (lease_terms, limits)));
    let listeners = Listeners::default();
    let calls_of = listeners.acceptor(
        &listen::listener_table::LOOKASIDE_GRPC,
        listen::Limits::calls().with_connections(limits.connections),
    );
    let ready = Arc::<AtomicBool>::default();
    let admin =
        AdminListener::bind_optional(admin, &listeners, &listen::listener_table::LOOKASIDE_HTTP).await?;
    let pages = Pages { picker: Arc::clone(&picker), ready: Arc::clone(&ready), listeners };
    let admin = admin.map(|listener| listener.start(fairmesh_pages::router(Arc::new(pages))));
    let stopping = CancellationToken::new();
    let served = async {
        if stopping.run_until_cancelled(picker.first_snapshot()).await.is_none() {
            return Ok(());
        }
        let listener = transport.bind(&listen).await?.within(calls_of);
        tracing::info!(address = %listen, "listening");
        ready.store(true, Relaxed);
        serve(listener, calls(&picker), &picker, limits.drain, &stopping).await;
        Ok(())
    };
    let served = async {
        let served = served.await;
        stopping.cancel();
        served
    };
    let draining = async {
        if stopping.run_until_cancelled(shutdown).await.is_some() {
            tracing::info!("draining");
            ready.store(false, Relaxed);
            stopping.cancel();
        }
    };
    let (served, (), ()) = tokio::join!(served, draining, expire_periodically(&picker, &stopping));
    mesh.close().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    served
}

fn calls(picker: &Arc<Picker>) -> Routes {
    let picks =
        LookasideServer::new(LookasideService(Arc::clone(picker))).max_decoding_message_size(MAX_MESSAGE);
    let lookups = RouteLookupServiceServer::new(RouteLookups(Arc::clone(picker)))
        .max_decoding_message_size(MAX_MESSAGE);
    Routes::new(picks).add_service(lookups)
}

/// Ends expired leases periodically.
async fn expire_periodically(picker: &Picker, stopping: &CancellationToken) {
    let mut ticks = interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        picker.expire_leases();
    }
}
