//! Reports the counts of all calls, for views of the mesh.
//!
//! Call rates, which planners receive, are reported more often and only for a few services. Counts are reported
//! separately, since each count must arrive exactly once: counts that are not acknowledged are sent again.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::{CallCounts, CountedInterval, CountedPath};
use fairmesh_rib::{follower::FollowerHandle, send_counts};
use fairmesh_signals::{CountMeter, CountOutbox, IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, counted_by_caller};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::subscription_registry::SubscriptionRegistry;
use crate::discovery::service_state::ServiceState;

/// Time limit of a program's last report before it ends.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// The task that sends the reports.
pub(super) struct CountReports {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl CountReports {
    /// Starts reporting, until `stop` is cancelled. The last report contains everything counted until then.
    pub(super) fn start<T: Send + Sync + 'static>(
        registry: Arc<SubscriptionRegistry<T>>,
        upstream: FollowerHandle,
        stop: CancellationToken,
    ) -> Self {
        let task = tokio::spawn(report_periodically(registry, upstream, stop.clone()));
        Self { stop, task: Mutex::new(Some(task)) }
    }

    /// Reports what was counted since the last report, then stops reporting. Returns within a second.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // The runtime has already reported a panic of the task.
            let _ = timeout(LAST_REPORT, task).await;
        }
    }
}

async fn report_periodically<T>(
    registry: Arc<SubscriptionRegistry<T>>,
    upstream: FollowerHandle,
    stop: CancellationToken,
) {
    let began = Instant::now();
    let mut reporter = CountReporter {
        began,
        meter: CountMeter::default(),
        outbox: CountOutbox::new(RandomState::new().hash_one(began)),
        read_at_ms: 0,
    };
    let mut interval_ms = IDLE_INTERVAL_MS;
    let mut is_stopping = false;
    while !is_stopping {
        is_stopping = tokio::select! {
            () = stop.cancelled() => true,
            () = sleep(Duration::from_millis(interval_ms)) => false,
        };
        reporter.read(&registry);
        let now_ms = || millis(began.elapsed());
        if let Some(asked) = send_counts(&upstream, &mut reporter.outbox, now_ms).await {
            interval_ms = asked.clamp(REPORT_INTERVAL_MS, 2 * IDLE_INTERVAL_MS);
        }
    }
}

struct CountReporter {
    began: Instant,
    meter: CountMeter,
    outbox: CountOutbox,
    read_at_ms: u64,
}

impl CountReporter {
    /// Reads what was counted since the last time.
    fn read<T>(&mut self, registry: &SubscriptionRegistry<T>) {
        let names = registry.reported().clone();
        let states: Vec<_> = {
            let by_name = registry.by_name();
            names.iter().filter_map(|name| Some(by_name.get(name)?.subscription.state())).collect()
        };
        let ended: Vec<_> = registry.take_ended().iter().map(|subscription| subscription.state()).collect();
        let now_ms = millis(self.began.elapsed());
        let span = Duration::from_millis(now_ms - self.read_at_ms);
        self.read_at_ms = now_ms;
        for calls in [self.meter.end(counted(&ended)), self.meter.read(counted(&states))] {
            if !calls.is_empty() {
                self.outbox.add(CountedInterval { span, calls, ..CountedInterval::default() }, now_ms);
            }
        }
    }
}

/// Counts of the calls to these services, by path.
fn counted<T>(states: &[Arc<ServiceState<T>>]) -> impl Iterator<Item = (CountedPath, CallCounts)> {
    let paths = states.iter().filter_map(|state| match &**state {
        ServiceState::Ready(ready) => ready.reported(),
        _ => None,
    });
    paths.flat_map(|paths| paths.iter()).map(counted_by_caller)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
