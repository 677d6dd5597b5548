use std::{sync::Arc, time::Duration};

use fairmesh_rib::upstream::Handle;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    MapName,
    build::{Builder, Built},
    source::{Broken, Source},
};
use crate::feed::Shared;

/// How long to wait after a version was made, at least: a burst of moves becomes one.
const REST: Duration = Duration::from_millis(20);
/// How many times as long as it took to make one to wait after it, so that moves without end leave most of the machine alone.
const RESTS: u32 = 4;
/// How long to wait until what was lost is fetched again.
const RETRY: Duration = Duration::from_secs(1);

/// Makes tables of every version of a map that is followed, until nobody does.
pub(super) async fn keep(
    shared: Arc<Shared>,
    upstream: Handle,
    name: MapName,
    (changed, gone): (Arc<Notify>, CancellationToken),
) {
    let numbers = Arc::clone(&shared);
    let mut builder = Builder::new(move || numbers.maps.next_table());
    // Tables of another builder number holders otherwise, and must not be mixed with those of this one.
    let mut latest: Option<Arc<Built>> = None;
    loop {
        let next = async {
            changed.notified().await;
            // Never closed.
            Arc::clone(&shared.maps.builds).acquire_owned().await
        };
        let turn = tokio::select! {
            biased;
            () = gone.cancelled() => return,
            turn = next => turn,
        };
        let Some(source) = shared.maps.source(&name) else { continue };
        let before = latest.clone();
        let began = Instant::now();
        // Its turn goes with it, and not with this keeper: it cannot be called off.
        let work = tokio::task::spawn_blocking(move || {
            let (version, built) = make(&mut builder, &source, before.as_ref());
            // What was read and is in tables now is freed, and would stay with this process.
            fairmesh_shared_memory::trim();
            drop(turn);
            (builder, version, built)
        });
        // Else it panicked, which the runtime has reported; the map stays as it is.
        let Ok((returned, version, built)) = work.await else { return };
        builder = returned;
        let took = began.elapsed();
        match built {
            Ok(built) => {
                tracing::debug!(service = %name.service, version, ?took, "shard tables are made");
                latest.clone_from(&built);
                shared.maps.tell(&name, &changed, |latest| (latest.built, latest.failure) = (built, None));
            }
            // Replaced meanwhile: what replaces it is there.
            Err(Broken::Lost(hash)) if !shared.maps.names(&name, hash) => changed.notify_one(),
            Err(Broken::Lost(hash)) => {
                tracing::warn!(service = %name.service, %hash, "a chunk of the shard map is fetched again");
                shared.fetch_again(&name, &upstream);
                rest(&gone, RETRY).await;
                changed.notify_one();
            }
            Err(broken) => {
                tracing::warn!(service = %name.service, version, %broken, "the shard map cannot be used; the one before stays");
                shared.maps.tell(&name, &changed, |latest| {
                    latest.failure = Some((version, broken.to_string()));
                });
            }
        }
        rest(&gone, (took * RESTS).max(REST)).await;
    }
}

/// The tables of what there is now, with its version.
fn make(
    builder: &mut Builder,
    source: &Source,
    before: Option<&Arc<Built>>,
) -> (u64, Result<Option<Arc<Built>>, Broken>) {
    let built = source.parts().map_err(Broken::from).and_then(|parts| match (&parts, before) {
        (None, _) => Ok(None),
        (Some(parts), Some(built)) if built.is(source, parts) => Ok(Some(Arc::clone(built))),
        (Some(parts), built) => {
            builder.build(source, parts, built.map(AsRef::as_ref)).map(|built| Some(Arc::new(built)))
        }
    });
    let version = source.parts().ok().flatten().map_or(0, |parts| parts.version);
    (version, built)
}

/// Waits so long, or until nobody follows the map any more.
async fn rest(gone: &CancellationToken, time: Duration) {
    // Which of the two it was, the caller finds out.
    let _ = timeout(time, gone.cancelled()).await;
}
