//! Reports the calls of services that a planner plans for.

use std::{hash::BuildHasher as _, hash::RandomState, sync::Arc, time::Duration};

use fairmesh_model::{MAX_CALL_PATHS, TrafficReport};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_signals::{CallMeter, REPORT_INTERVAL_MS};
use fairmesh_wire::v1;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::registry::SubscriptionRegistry;
use crate::discovery::service_state::ServiceState;

const INTERVAL: Duration = Duration::from_millis(REPORT_INTERVAL_MS);

/// Reports until `stop` is cancelled; nothing while no service is planned for. A report that fails is not repeated: the next
/// one says more.
pub(super) async fn report_periodically<T>(
    registry: Arc<SubscriptionRegistry<T>>,
    upstream: FollowerHandle,
    stop: CancellationToken,
) {
    let began = Instant::now();
    let mut reporter = CallReporter {
        id: RandomState::new().hash_one(began),
        interval: INTERVAL,
        meter: CallMeter::default(),
    };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next = began;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = Instant::now();
        if now < next {
            continue;
        }
        let elapsed_ms = u64::try_from((now - began).as_millis()).unwrap_or(u64::MAX);
        let Some(report) = reporter.report(&registry, elapsed_ms) else { continue };
        // Of what there is to report, a control plane may want less.
        let wait = send(&upstream, report).await.unwrap_or(INTERVAL).max(INTERVAL);
        reporter.interval = wait;
        next = now + wait - INTERVAL / 2;
    }
}

struct CallReporter {
    id: u64,
    /// The time until the next report, as the receiver last asked for.
    interval: Duration,
    meter: CallMeter,
}

impl CallReporter {
    /// The report of the time since the last one; `None` where there is none.
    fn report<T>(&mut self, registry: &SubscriptionRegistry<T>, now_ms: u64) -> Option<TrafficReport> {
        let names: Vec<_> = registry.reported().iter().cloned().collect();
        let states: Vec<_> = {
            let by_name = registry.by_name();
            names.iter().filter_map(|name| Some(by_name.get(name)?.subscription.state())).collect()
        };
        let reported = states.iter().filter_map(|state| match &**state {
            ServiceState::Ready(ready) => ready.reported.as_deref(),
            _ => None,
        });
        let paths = reported.clone().flat_map(|reported| reported.iter()).take(MAX_CALL_PATHS);
        let calls = self.meter.read(paths, now_ms)?;
        let regions: std::collections::BTreeSet<_> =
            reported.map(|reported| reported.from().clone()).collect();
        (!regions.is_empty()).then(|| TrafficReport {
            reporter: self.id,
            interval: self.interval,
            regions,
            calls,
            servers: Default::default(),
            left_out: 0,
        })
    }
}

/// Sends a report; the time until the next one, if the receiver has a wish.
async fn send(upstream: &FollowerHandle, report: TrafficReport) -> Option<Duration> {
    let connection = upstream.connection()?;
    let mut client = connection.imbalance();
    let request = v1::ReportUsageRequest { usages: Vec::new(), traffic: Some(report.into()) };
    match timeout(INTERVAL, client.report(request)).await {
        Ok(Ok(response)) => Some(Duration::from_millis(response.into_inner().next_traffic_ms.into())),
        Ok(Err(status)) => {
            tracing::debug!(reason = status.message(), "calls could not be reported");
            None
        }
        Err(_) => None,
    }
}
