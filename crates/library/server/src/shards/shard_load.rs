//! Load of calls by shard, for shard balancing (ServiceRouter §4.3.1).
//!
//! The load is the sum of the times for which calls are in flight. This is a server's average concurrency (Little's
//! law), whether it computes or waits. Rejected: counting calls, since calls for one shard may be more expensive than
//! calls for another.

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{MAX_REPORTED_SHARDS, Role, ShardId, ShardKey};
use fairmesh_wire::v1;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::{Registration, RegistryClient, layer::LayerState, registration::registry_client::instance_ref};

/// Interval of reports.
const INTERVAL: Duration = Duration::from_secs(10);

/// Calls for one shard since the last report.
#[derive(Debug, Default)]
pub(crate) struct ShardLoad {
    busy_us: AtomicU64,
    calls: AtomicU64,
}

impl ShardLoad {
    /// Adds one call.
    pub(crate) fn add(&self, took: Duration) {
        self.busy_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }

    /// Takes over the counts of the previous map. A call that is added concurrently may be lost, which is acceptable
    /// for a load measurement.
    pub(crate) fn carry_over(&self, before: &Self) {
        self.busy_us.store(before.busy_us.load(Relaxed), Relaxed);
        self.calls.store(before.calls.load(Relaxed), Relaxed);
    }

    fn take(&self) -> (u64, u64) {
        (self.busy_us.swap(0, Relaxed), self.calls.swap(0, Relaxed))
    }
}

/// A call with a key, until it ends or becomes a stream. Its shard is looked up at the end, so that a new map costs
/// running calls nothing.
#[derive(Debug)]
pub(crate) struct KeyedCall {
    shared: Arc<LayerState>,
    key: ShardKey,
    began: Instant,
}

impl KeyedCall {
    /// Begins a call with a key.
    pub(crate) fn begin(shared: &Arc<LayerState>, key: ShardKey) -> Self {
        Self { shared: Arc::clone(shared), key, began: Instant::now() }
    }
}

impl Drop for KeyedCall {
    fn drop(&mut self) {
        let ownership = self.shared.ownership.load();
        if let Some(work) = ownership.as_ref().and_then(|own| own.shard_load(self.key)) {
            work.add(self.began.elapsed());
        }
    }
}

/// A task that reports the load of shards until it is dropped. A failed report is not repeated: the next one covers
/// only its own interval.
#[derive(Debug)]
pub(crate) struct ShardLoadReports {
    _task: AbortOnDropHandle<()>,
}

impl ShardLoadReports {
    /// Starts reporting. Must be called within a tokio runtime.
    pub(crate) fn start(
        registry: Arc<RegistryClient>,
        registration: Registration,
        shared: Arc<LayerState>,
    ) -> Self {
        Self { _task: AbortOnDropHandle::new(tokio::spawn(report(registry, registration, shared))) }
    }
}

async fn report(registry: Arc<RegistryClient>, registration: Registration, shared: Arc<LayerState>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let (mut since, mut sequence) = (Instant::now(), 0);
    loop {
        ticks.tick().await;
        let period = std::mem::replace(&mut since, Instant::now()).elapsed();
        let Some(reported) = take_report(&shared) else { continue };
        sequence += 1;
        let request = v1::ReportShardLoadRequest {
            instance: Some(instance_ref(&registration.service, &registration.instance)),
            sequence,
            period_ms: u32::try_from(period.as_millis()).unwrap_or(u32::MAX),
            ..reported
        };
        if let Err(error) = registry.report_shard_load(request).await {
            let service = &registration.service;
            tracing::debug!(%service, %error, "the load of shards could not be reported");
        }
    }
}

/// Takes the counts; `None` if no map is known. A server that holds no shards sends an empty report, and may then be
/// assigned some.
fn take_report(shared: &LayerState) -> Option<v1::ReportShardLoadRequest> {
    let ownership = shared.ownership.load();
    let mut calls = 0;
    let mut loads: Vec<_> = ownership
        .as_ref()?
        .loads()
        .map(|(shard, role, work)| {
            let (busy_us, begun) = work.take();
            calls += begun;
            (busy_us, shard, role)
        })
        .filter(|(busy_us, ..)| *busy_us > 0)
        .collect();
    if loads.len() > MAX_REPORTED_SHARDS {
        loads.select_nth_unstable_by_key(MAX_REPORTED_SHARDS, |(busy_us, shard, _)| {
            (Reverse(*busy_us), *shard)
        });
    }
    let reported = loads.len().min(MAX_REPORTED_SHARDS);
    let rest_us = loads[reported..].iter().map(|(busy_us, ..)| busy_us).sum();
    let work = |(busy_us, shard, role): (u64, ShardId, &Role)| v1::report_shard_load_request::Work {
        shard: shard.0,
        role: role.to_string(),
        busy_us,
    };
    let shards = loads.into_iter().take(reported).map(work).collect();
    Some(v1::ReportShardLoadRequest { shards, rest_us, calls, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, convert::Infallible};

    use bytes::Bytes;
    use fairmesh_model::{KeyRange, Replica, ReplicaState, Shard, ShardMap};
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use tower::{Layer as _, ServiceExt as _, service_fn};

    use super::*;
    use crate::{ServerLayer, shards::ownership::Ownership};
    use fairmesh_headers::KEY;

    /// Returns shards of 100 keys each, all held here.
    fn own(shards: u32) -> Ownership {
        let here = Replica {
            instance: "here".parse().unwrap(),
            region: "eu".parse().unwrap(),
            role: "primary".parse().unwrap(),
            state: ReplicaState::Serving,
        };
        let shard = |id: u32| Shard {
            id: ShardId(id),
            start: ShardKey(u128::from(id) * 100),
            replicas: vec![here.clone()],
        };
        let map = ShardMap { version: 1, interval: KeyRange::ALL, shards: (0..shards).map(shard).collect() };
        Ownership::new(&map, &here.instance, &BTreeSet::new())
    }

    /// Serves a call that takes 20 ms.
    async fn call(layer: &ServerLayer, key: Option<u32>) {
        let service = layer.layer(service_fn(async |_: Request<()>| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }));
        let mut request = Request::get("/");
        if let Some(key) = key {
            request = request.header(KEY, key);
        }
        service.oneshot(request.body(()).unwrap()).await.unwrap().collect().await.unwrap();
    }

    fn shards(reported: &v1::ReportShardLoadRequest) -> Vec<(u32, u64)> {
        reported.shards.iter().map(|work| (work.shard, work.busy_us / 5_000)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn call_adds_its_load_to_shard_of_its_key() {
        let layer = ServerLayer::default();
        call(&layer, Some(5)).await;
        assert!(take_report(&layer.shared).is_none(), "no map is known");
        layer.shared.ownership.store(Some(Arc::new(own(2))));
        for key in [Some(5), Some(99), Some(100), None] {
            call(&layer, key).await;
        }
        let said = take_report(&layer.shared).unwrap();
        assert_eq!((shards(&said), said.calls, said.rest_us), (vec![(0, 8), (1, 4)], 3, 0));
        assert_eq!(said.shards[0].role, "primary");
        assert_eq!(take_report(&layer.shared).unwrap().calls, 0, "each call is told once");
    }

    #[tokio::test(start_paused = true)]
    async fn shard_load_survives_new_shard_map() {
        let layer = ServerLayer::default();
        layer.shared.ownership.store(Some(Arc::new(own(1))));
        call(&layer, Some(5)).await;
        let under_way = call(&layer, Some(6));
        let change = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let next = own(2);
            next.carry_over(layer.shared.ownership.load().as_ref().unwrap());
            layer.shared.ownership.store(Some(Arc::new(next)));
        };
        tokio::join!(under_way, change);
        let said = take_report(&layer.shared).unwrap();
        assert_eq!((shards(&said), said.calls), (vec![(0, 8)], 2));
    }

    #[tokio::test(start_paused = true)]
    async fn most_loaded_shards_are_reported_individually_and_others_as_sum() {
        let layer = ServerLayer::default();
        let own = own(1000);
        for shard in 0..1000u64 {
            own.shard_load(ShardKey(u128::from(shard) * 100)).unwrap().add(Duration::from_micros(shard));
        }
        layer.shared.ownership.store(Some(Arc::new(own)));
        let reported = take_report(&layer.shared).unwrap();
        assert_eq!((reported.shards.len(), reported.calls), (MAX_REPORTED_SHARDS, 1000));
        assert!(reported.shards.iter().all(|work| work.busy_us >= 872));
        assert_eq!(reported.rest_us, (0..872).sum::<u64>());
    }
}
