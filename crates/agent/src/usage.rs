//! Takes what local programs say of their CPU and passes it on in batches, so that a fleet of servers is a fleet of
//! agents to the control plane, and its restart costs no figures.

use std::{
    collections::{BTreeMap, btree_map},
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_imbalance::{Minute, Usage};
use fairmesh_model::{InstanceId, Invalid, Location, ServiceName};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_wire::v1::{self, imbalance_server::Imbalance};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

/// How often what waits is passed on.
const PERIOD: Duration = Duration::from_secs(5);
/// How long the control plane may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many minutes of instances may wait: a quarter of an hour of 600 local programs.
const MAX_WAITING: usize = 10_000;
/// How many of them one message holds, well below its limit.
const MAX_BATCH: usize = 2_000;

/// What waits, as it is passed on.
type Entry = (Key, Location, v1::MinuteUsage);

/// A minute of an instance. Ordered by minute, so that the oldest are first to be given up.
type Key = (Minute, ServiceName, InstanceId);

/// What waits to be passed on.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<Key, (Location, v1::MinuteUsage)>);

/// The agent's side of usage reports.
#[derive(Clone, Debug)]
pub(crate) struct Usages {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: FollowerHandle,
    /// Where questions are answered, for people.
    upstreams: String,
    waiting: Mutex<Waiting>,
    /// Given up since too much waited.
    dropped: AtomicU64,
    /// Given up since the control plane does not take them as they are.
    refused: AtomicU64,
}

impl Waiting {
    /// Keeps the fullest report of each minute; how many of the oldest had to go for it.
    fn put(&mut self, key: Key, place: Location, usage: v1::MinuteUsage) -> u64 {
        match self.0.entry(key) {
            btree_map::Entry::Occupied(known) if known.get().1.covered_ms >= usage.covered_ms => return 0,
            btree_map::Entry::Occupied(mut known) => drop(known.insert((place, usage))),
            btree_map::Entry::Vacant(free) => drop(free.insert((place, usage))),
        }
        let mut dropped = 0;
        while self.0.len() > MAX_WAITING {
            dropped += u64::from(self.0.pop_first().is_some());
        }
        dropped
    }

    /// The oldest, to be passed on.
    fn batch(&self) -> Vec<Entry> {
        let oldest = self.0.iter().take(MAX_BATCH);
        oldest.map(|(key, (place, usage))| (key.clone(), place.clone(), *usage)).collect()
    }

    /// These arrived, and wait no longer unless they have grown meanwhile.
    fn arrived(&mut self, batch: &[Entry]) {
        for (key, _, sent) in batch {
            if self.0.get(key).is_some_and(|(_, usage)| usage == sent) {
                self.0.remove(key);
            }
        }
    }
}

impl Usages {
    /// Passes on to `upstream`, which people know as `upstreams`.
    pub(crate) fn new(upstream: FollowerHandle, upstreams: String) -> Self {
        let (dropped, refused) = (AtomicU64::default(), AtomicU64::default());
        let shared = Shared { upstream, upstreams, waiting: Mutex::default(), dropped, refused };
        Self { shared: Arc::new(shared) }
    }

    /// How many minutes of instances wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().0.len()
    }

    /// How many were given up, since too much waited.
    pub(crate) fn dropped(&self) -> &AtomicU64 {
        &self.shared.dropped
    }

    /// How many were given up, since the control plane does not take them as they are.
    pub(crate) fn refused(&self) -> &AtomicU64 {
        &self.shared.refused
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, usage: v1::InstanceUsage) -> Result<(), Invalid> {
        let service: ServiceName = usage.service.try_into().map_err(|e: Invalid| e.within("service"))?;
        let instance: InstanceId = usage.instance.try_into().map_err(|e: Invalid| e.within("instance"))?;
        let place = usage.location.ok_or_else(|| Invalid::new("location", "is missing", "send it"))?;
        let place: Location = place.try_into().map_err(|e: Invalid| e.within("location"))?;
        let mut waiting = self.lock();
        for minute in usage.minutes {
            let known = Usage {
                cpu_us: minute.cpu_us,
                covered_ms: minute.covered_ms,
                limit_millicores: minute.limit_millicores,
                requests: minute.requests,
            };
            // What cannot be true would only be refused further up.
            let impossible = |e| Invalid::new("minutes", format!("{e}"), "send what was measured");
            known.check().map_err(impossible)?;
            let key = (Minute(minute.minute), service.clone(), instance.clone());
            self.shared.dropped.fetch_add(waiting.put(key, place.clone(), minute), Relaxed);
        }
        Ok(())
    }

    /// Passes on what waits, until `stopping`.
    pub(crate) async fn run(self, stopping: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopping.cancelled() => return,
            }
            // One that was full is followed by the next at once.
            while self.pass_on().await {}
        }
    }

    /// Passes one batch on; whether more is to be passed on now.
    async fn pass_on(&self) -> bool {
        let batch = self.lock().batch();
        let Some(connection) = self.shared.upstream.connection().filter(|_| !batch.is_empty()) else {
            return false;
        };
        let full = batch.len() == MAX_BATCH;
        let passed = self
            .deliver(batch, |request| {
                let mut client = connection.imbalance();
                async move {
                    let late = |_| Status::deadline_exceeded("the control plane did not answer in time");
                    timeout(PATIENCE, client.report(request)).await.unwrap_or_else(|e| Err(late(e))).map(drop)
                }
            })
            .await;
        if let Err(status) = &passed {
            tracing::debug!(reason = status.message(), "CPU usage could not be passed on; it waits");
        }
        full && passed.is_ok()
    }

    /// Sends a batch. One that is refused as wrong would be refused for ever, and hold up all that follow: it is sent
    /// again in halves, down to the minute that is wrong, which is given up.
    async fn deliver<Sent>(
        &self,
        batch: Vec<Entry>,
        send: impl Fn(v1::ReportUsageRequest) -> Sent + Send + Sync,
    ) -> Result<(), Status>
    where
        Sent: Future<Output = Result<(), Status>> + Send,
    {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match send(request(&part)).await {
                // A control plane of a release that takes no figures: keeping them helps nobody.
                Err(status) if status.code() != Code::Unimplemented => {
                    if status.code() != Code::InvalidArgument {
                        return Err(status);
                    }
                    if part.len() > 1 {
                        let half = part.split_off(part.len() / 2);
                        parts.extend([half, part]);
                        continue;
                    }
                    self.shared.refused.fetch_add(1, Relaxed);
                    let who =
                        part.first().map(|((_, service, instance), ..)| format!("'{instance}' of {service}"));
                    let (who, reason) = (who.unwrap_or_default(), status.message());
                    tracing::warn!(
                        who,
                        reason,
                        "the control plane refuses a minute of CPU usage; it is given up"
                    );
                }
                _ => {}
            }
            self.lock().arrived(&part);
        }
        Ok(())
    }
}

fn request(batch: &[Entry]) -> v1::ReportUsageRequest {
    let usages = batch.iter().map(|((_, service, instance), place, usage)| v1::InstanceUsage {
        service: service.to_string(),
        instance: instance.to_string(),
        location: Some(place.clone().into()),
        minutes: vec![*usage],
    });
    v1::ReportUsageRequest { usages: usages.collect() }
}

#[tonic::async_trait]
impl Imbalance for Usages {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        for (i, usage) in request.into_inner().usages.into_iter().enumerate() {
            let put = self.put(usage).map_err(|e| e.within(format!("usages[{i}]")));
            put.map_err(|e| Status::invalid_argument(e.to_string()))?;
        }
        Ok(Response::new(v1::ReportUsageResponse { dropped: 0 }))
    }

    async fn read(
        &self,
        _: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        let upstreams = &self.shared.upstreams;
        Err(Status::failed_precondition(format!(
            "an agent knows its own machine only; ask the control plane at {upstreams}"
        )))
    }
}

#[cfg(test)]
mod tests;
