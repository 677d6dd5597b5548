use std::{sync::Arc, time::Duration};

use fairmesh_rib::follower::FollowerHandle;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    MapName,
    map_records::{
        BuildError::{self, ChunkMissing},
        MapRecords,
    },
    table_builder::{Builder, BuiltMap},
};
use crate::state::AgentState;

/// Minimum pause between builds: a burst of moves becomes one version.
const MIN_BUILD_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a build as a multiple of its duration, so that constant moves leave most of the machine to others.
const BUILD_PAUSE_FACTOR: u32 = 4;
/// Pause for a missing chunk to be fetched again.
const CHUNK_RETRY: Duration = Duration::from_secs(1);

/// Builds the tables of each version of a map until the map is dropped.
pub(super) async fn run(
    shared: Arc<AgentState>,
    upstream: FollowerHandle,
    name: MapName,
    (changed, gone): (Arc<Notify>, CancellationToken),
) {
    let (service, numbers) = (name.service.clone(), Arc::clone(&shared));
    let mut builder = Builder::new(move || numbers.maps.next_table());
    // Builders number holders independently, so tables of two builders must not be mixed.
    let mut latest: Option<Arc<BuiltMap>> = None;
    loop {
        let next = async {
            changed.notified().await;
            // The semaphore is never closed.
            Arc::clone(&shared.maps.builds).acquire_owned().await
        };
        let permit = tokio::select! {
            biased;
            () = gone.cancelled() => return,
            permit = next => permit,
        };
        let Some(source) = shared.maps.source(&name) else { continue };
        let before = latest.clone();
        let began = Instant::now();
        // The permit moves into the blocking task, which cannot be cancelled.
        let work = tokio::task::spawn_blocking(move || {
            let (version, built) = build_current(&mut builder, &source, before.as_ref());
            // Returns the freed chunks to the system; the allocator would keep them.
            fairmesh_shared_memory::trim();
            drop(permit);
            (builder, version, built)
        });
        // After a panic, which the runtime has reported, the map stays unchanged.
        let Ok((returned, version, built)) = work.await else { return };
        builder = returned;
        let took = began.elapsed();
        match built {
            Ok(built) => {
                tracing::debug!(%service, version, ?took, "shard tables built");
                latest.clone_from(&built);
                shared.maps.publish(&name, &changed, |latest| (latest.built, latest.failure) = (built, None));
            }
            // The chunk was replaced meanwhile, and the new one is there.
            Err(ChunkMissing(hash)) if !shared.maps.has_chunk(&name, hash) => changed.notify_one(),
            Err(ChunkMissing(hash)) => {
                tracing::warn!(%service, %hash, "chunk of a shard map is missing on disk; fetching it");
                shared.fetch_again(&name, &upstream);
                pause(&gone, CHUNK_RETRY).await;
                changed.notify_one();
            }
            Err(error) => {
                tracing::warn!(%service, version, %error, "invalid shard map; keeping the previous version");
                let failure = Some((version, error.to_string()));
                shared.maps.publish(&name, &changed, |latest| latest.failure = failure);
            }
        }
        pause(&gone, (took * BUILD_PAUSE_FACTOR).max(MIN_BUILD_PAUSE)).await;
    }
}

/// Builds the tables of the current records, and returns them with their version.
fn build_current(
    builder: &mut Builder,
    source: &MapRecords,
    before: Option<&Arc<BuiltMap>>,
) -> (u64, Result<Option<Arc<BuiltMap>>, BuildError>) {
    let built = source.parts().map_err(BuildError::from).and_then(|parts| match (&parts, before) {
        (None, _) => Ok(None),
        (Some(parts), Some(built)) if built.is(source, parts) => Ok(Some(Arc::clone(built))),
        (Some(parts), built) => {
            builder.build(source, parts, built.map(AsRef::as_ref)).map(|built| Some(Arc::new(built)))
        }
    });
    let version = source.parts().ok().flatten().map_or(0, |parts| parts.version);
    (version, built)
}

/// Waits for this time, or until the map is dropped.
async fn pause(gone: &CancellationToken, time: Duration) {
    // The caller checks which of the two happened.
    let _ = timeout(time, gone.cancelled()).await;
}
