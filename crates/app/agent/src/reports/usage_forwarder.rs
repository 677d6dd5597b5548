//! Queues minutes of CPU usage of local programs and forwards them in batches. The control plane therefore has one
//! client per machine, and its restart loses no minutes.

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
use fairmesh_wire::v1;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

/// Interval between batches.
const FORWARD_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a report to the control plane.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of queued instance-minutes: a quarter of an hour of 600 local programs.
const MAX_QUEUED: usize = 10_000;
/// Maximum number of instance-minutes in one message, well below its size limit.
const MAX_BATCH: usize = 2_000;

/// A queued report.
type Entry = (Key, Location, v1::MinuteUsage);

/// A minute of an instance, ordered by minute, so that the oldest are dropped first.
type Key = (Minute, ServiceName, InstanceId);

/// Reports not yet forwarded.
#[derive(Debug, Default)]
struct UsageQueue(BTreeMap<Key, (Location, v1::MinuteUsage)>);

/// The queue, and the loop that forwards it. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct UsageForwarder {
    shared: Arc<ForwarderState>,
}

#[derive(Debug)]
struct ForwarderState {
    upstream: FollowerHandle,
    queue: Mutex<UsageQueue>,
    /// Number of instance-minutes dropped because the queue was full.
    dropped: AtomicU64,
    /// Number of instance-minutes that the control plane rejected as invalid.
    refused: AtomicU64,
}

impl UsageQueue {
    /// Stores a report. For each minute, the report with the longest coverage is kept. Returns how many of the oldest
    /// reports were dropped.
    fn put(&mut self, key: Key, location: Location, usage: v1::MinuteUsage) -> u64 {
        match self.0.entry(key) {
            btree_map::Entry::Occupied(known) if known.get().1.covered_ms >= usage.covered_ms => return 0,
            btree_map::Entry::Occupied(mut known) => drop(known.insert((location, usage))),
            btree_map::Entry::Vacant(free) => drop(free.insert((location, usage))),
        }
        let mut dropped = 0;
        while self.0.len() > MAX_QUEUED {
            dropped += u64::from(self.0.pop_first().is_some());
        }
        dropped
    }

    /// Returns the oldest queued reports, at most [`MAX_BATCH`].
    fn batch(&self) -> Vec<Entry> {
        let oldest = self.0.iter().take(MAX_BATCH);
        oldest.map(|(key, (location, usage))| (key.clone(), location.clone(), *usage)).collect()
    }

    /// Removes delivered reports, except those updated meanwhile.
    fn remove_delivered(&mut self, batch: &[Entry]) {
        for (key, _, sent) in batch {
            if self.0.get(key).is_some_and(|(_, usage)| usage == sent) {
                self.0.remove(key);
            }
        }
    }
}

impl UsageForwarder {
    /// Creates a forwarder to `upstream`.
    pub(crate) fn new(upstream: FollowerHandle) -> Self {
        let (dropped, refused) = (AtomicU64::default(), AtomicU64::default());
        let shared = ForwarderState { upstream, queue: Mutex::default(), dropped, refused };
        Self { shared: Arc::new(shared) }
    }

    /// Number of queued instance-minutes.
    pub(crate) fn queued(&self) -> usize {
        self.lock().0.len()
    }

    /// Number of instance-minutes dropped because the queue was full.
    pub(crate) fn dropped(&self) -> &AtomicU64 {
        &self.shared.dropped
    }

    /// Number of instance-minutes that the control plane rejected as invalid.
    pub(crate) fn refused(&self) -> &AtomicU64 {
        &self.shared.refused
    }

    fn lock(&self) -> MutexGuard<'_, UsageQueue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the minutes of an instance.
    ///
    /// # Errors
    /// If a minute is invalid.
    pub(super) fn put(&self, usage: v1::InstanceUsage) -> Result<(), Invalid> {
        let service: ServiceName = usage.service.try_into().map_err(|e: Invalid| e.within("service"))?;
        let instance: InstanceId = usage.instance.try_into().map_err(|e: Invalid| e.within("instance"))?;
        let location = usage.location.ok_or_else(|| Invalid::new("location", "is missing", "send it"))?;
        let location: Location = location.try_into().map_err(|e: Invalid| e.within("location"))?;
        let mut queue = self.lock();
        for minute in usage.minutes {
            let known = Usage {
                cpu_us: minute.cpu_us,
                covered_ms: minute.covered_ms,
                limit_millicores: minute.limit_millicores,
                requests: minute.requests,
            };
            // The control plane would only reject impossible values.
            let impossible = |e| Invalid::new("minutes", format!("{e}"), "send what was measured");
            known.check().map_err(impossible)?;
            let key = (Minute(minute.minute), service.clone(), instance.clone());
            self.shared.dropped.fetch_add(queue.put(key, location.clone(), minute), Relaxed);
        }
        Ok(())
    }

    /// Forwards until `stopping`, and then sends the rest.
    pub(super) async fn run(&self, stopping: CancellationToken) {
        let mut ticks = interval(FORWARD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_stopping = false;
        while !is_stopping {
            is_stopping = tokio::select! {
                _ = ticks.tick() => false,
                () = stopping.cancelled() => true,
            };
            // A full batch is followed by the next one at once.
            while self.forward_batch().await {}
        }
    }

    /// Forwards one batch; returns whether another is due at once.
    async fn forward_batch(&self) -> bool {
        let batch = self.lock().batch();
        let Some(connection) = self.shared.upstream.connection().filter(|_| !batch.is_empty()) else {
            return false;
        };
        let full = batch.len() == MAX_BATCH;
        let passed = self
            .send_all(batch, |request| {
                let connection = connection.clone();
                async move {
                    let late = |_| Status::deadline_exceeded("no response from the control plane in time");
                    let sent = timeout(REPORT_TIMEOUT, connection.report_signals(request)).await;
                    sent.unwrap_or_else(|e| Err(late(e))).map(drop)
                }
            })
            .await;
        if let Err(status) = &passed {
            tracing::debug!(reason = status.message(), "cannot forward CPU usage; it stays queued");
        }
        full && passed.is_ok()
    }

    /// Sends a batch. A rejected batch would be rejected forever and block later ones. It is therefore sent again in
    /// halves, down to the invalid minute, which is dropped.
    async fn send_all<Sent>(
        &self,
        batch: Vec<Entry>,
        send: impl Fn(v1::ReportSignalsRequest) -> Sent + Send + Sync,
    ) -> Result<(), Status>
    where
        Sent: Future<Output = Result<(), Status>> + Send,
    {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match send(request(&part)).await {
                // A control plane without this service never accepts the reports.
                Err(status) if status.code() != Code::Unimplemented => {
                    if !is_final(status.code()) {
                        return Err(status);
                    }
                    if part.len() > 1 {
                        let half = part.split_off(part.len() / 2);
                        parts.extend([half, part]);
                        continue;
                    }
                    self.shared.refused.fetch_add(1, Relaxed);
                    let instance =
                        part.first().map(|((_, service, instance), ..)| format!("'{instance}' of {service}"));
                    let (instance, reason) = (instance.unwrap_or_default(), status.message());
                    tracing::warn!(instance, reason, "control plane rejected a minute of CPU usage; dropped");
                }
                _ => {}
            }
            self.lock().remove_delivered(&part);
        }
        Ok(())
    }
}

fn request(batch: &[Entry]) -> v1::ReportSignalsRequest {
    let usages = batch.iter().map(|((_, service, instance), location, usage)| v1::InstanceUsage {
        service: service.to_string(),
        instance: instance.to_string(),
        location: Some(location.clone().into()),
        minutes: vec![*usage],
    });
    v1::ReportSignalsRequest { usages: usages.collect(), ..Default::default() }
}

/// Whether a control plane would refuse the report again: it is invalid, or another agent registered the instance.
fn is_final(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::NotFound | Code::PermissionDenied)
}

#[cfg(test)]
mod tests;
