//! Reports the calls of services for which a planner plans, or which operators are viewing.
//!
//! The response to a report names the services that operators are viewing. A program without calls to report sends an
//! empty report now and then to receive these names. Distributing the names as records was rejected: each view would be
//! a write to the store, and every service would need one more followed prefix for a record that rarely exists.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{
    CallPath, CallRates, MAX_CALL_PATHS, MAX_INCOMPLETE_SERVICES, Region, ServiceName, TrafficReport,
};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_signals::{
    CallMeter, IDLE_INTERVAL_MS, MAX_WATCHED_SERVICES, REPORT_INTERVAL_MS, ReportParts, WATCHED_FOR_MS,
    merge_paths, serves,
};
use fairmesh_wire::{convert::MAX_PROCESS_NAME, v1};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::subscription_registry::SubscriptionRegistry;
use crate::discovery::service_state::ServiceState;

const INTERVAL: Duration = Duration::from_millis(REPORT_INTERVAL_MS);
const IDLE_INTERVAL: Duration = Duration::from_millis(IDLE_INTERVAL_MS);
const WATCHED_FOR: Duration = Duration::from_millis(WATCHED_FOR_MS);

/// Reports until `stop` is cancelled; sends nothing while no service is in use. A failed report is not repeated, since
/// the next one supersedes it.
pub(super) async fn report_periodically<T>(
    registry: Arc<SubscriptionRegistry<T>>,
    upstream: FollowerHandle,
    (client_id, stop): (String, CancellationToken),
) {
    let began = Instant::now();
    let mut reporter = CallReporter {
        id: RandomState::new().hash_one(began),
        client_id,
        interval: INTERVAL,
        meter: CallMeter::default(),
        parts: ReportParts::default(),
    };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut next, mut answered_at, mut was_idle) = (began, began, true);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = Instant::now();
        // When planning begins for a service, its calls are reported at once.
        if now < next && !(was_idle && has_planned(&registry)) {
            continue;
        }
        let elapsed_ms = u64::try_from((now - began).as_millis()).unwrap_or(u64::MAX);
        let Some(parts) = reporter.report(&registry, elapsed_ms) else { continue };
        was_idle = parts.iter().all(|part| part.regions.is_empty());
        let response = send_all(&upstream, parts).await;
        if response.is_some() {
            reporter.parts.delivered();
        }
        let asked = response.as_ref().map(|response| Duration::from_millis(response.next_report_ms.into()));
        match response {
            Some(response) => {
                answered_at = now;
                registry.watch(watched(&registry, names(response.watched)));
            }
            None if answered_at.elapsed() > WATCHED_FOR => registry.watch(HashSet::new()),
            None => {}
        }
        // A control plane may ask for fewer reports while there is something to report. Empty reports are not urgent.
        let least = if was_idle && !has_watched(&registry) { IDLE_INTERVAL } else { INTERVAL };
        let wait = asked.unwrap_or(least).max(least);
        reporter.interval = wait;
        next = now + wait - INTERVAL / 2;
    }
}

/// Returns the services whose calls are reported because operators are viewing `names`. These are the viewed
/// services, and all services that this program calls while serving one of them.
fn watched<T>(registry: &SubscriptionRegistry<T>, mut names: HashSet<ServiceName>) -> HashSet<ServiceName> {
    if names.iter().any(serves) {
        names.extend(registry.by_name().keys().take(MAX_WATCHED_SERVICES).cloned());
    }
    names
}

/// Whether a planner needs reports about any service.
fn has_planned<T>(registry: &SubscriptionRegistry<T>) -> bool {
    let names = registry.reported().clone();
    let by_name = registry.by_name();
    names
        .iter()
        .filter_map(|name| by_name.get(name))
        .any(|known| matches!(&*known.subscription.state(), ServiceState::Ready(ready) if ready.is_planned()))
}

/// Whether an operator is viewing any of this program's services.
fn has_watched<T>(registry: &SubscriptionRegistry<T>) -> bool {
    let watched = registry.watched().clone();
    let by_name = registry.by_name();
    watched.iter().any(|name| by_name.contains_key(name))
}

/// Parses service names. Invalid ones come from a later release and are skipped.
fn names(watched: Vec<String>) -> HashSet<ServiceName> {
    watched
        .into_iter()
        .take(MAX_WATCHED_SERVICES)
        .filter_map(|name| ServiceName::try_from(name).ok())
        .collect()
}

struct CallReporter {
    id: u64,
    /// Names this process for calls without a calling service.
    client_id: String,
    /// Time until the next report, as last requested by the receiver.
    interval: Duration,
    meter: CallMeter,
    parts: ReportParts,
}

impl CallReporter {
    /// The parts of the report of the time since the last one, of nothing if nothing is asked for; `None` where there is none.
    fn report<T>(&mut self, registry: &SubscriptionRegistry<T>, now_ms: u64) -> Option<Vec<TrafficReport>> {
        if !registry.has_services() {
            return None;
        }
        let (names, watched) = (registry.reported().clone(), registry.watched().clone());
        let states: Vec<_> = {
            let by_name = registry.by_name();
            names.iter().filter_map(|name| Some(by_name.get(name)?.subscription.state())).collect()
        };
        let ready = states.iter().filter_map(|state| match &**state {
            ServiceState::Ready(ready) => Some((ready, ready.reported()?)),
            _ => None,
        });
        let (planned, others): (Vec<_>, Vec<_>) = ready.partition(|(ready, _)| ready.is_planned());
        let reported = planned.iter().chain(&others);
        // Counters that are no longer viewed are read too, so that they start from here if they are viewed again.
        let paths = reported.flat_map(|(_, paths)| paths.iter());
        let calls = self.meter.read(paths, now_ms);
        let is_watched = |name: &ServiceName| watched.contains(name);
        let asked_for =
            planned.iter().chain(others.iter().filter(|(ready, _)| is_watched(ready.upstream.name())));
        let (mut regions, mut services) = (BTreeSet::new(), HashSet::new());
        for (ready, paths) in asked_for {
            regions.insert(paths.from().clone());
            services.insert(ready.upstream.name());
        }
        let mut calls = match calls {
            Some(calls) => calls,
            None if services.is_empty() => Default::default(),
            // The first reading has no rates.
            None => return None,
        };
        calls.retain(|path, _| services.contains(&path.service));
        let planned: HashSet<_> = planned.iter().map(|(ready, _)| ready.upstream.name()).collect();
        let (reporter, interval) = (self.id, self.interval);
        let processes = self.processes(&calls);
        let report =
            TrafficReport { reporter, interval, regions, calls, processes, ..TrafficReport::default() };
        let parts = self.parts.divide(report).into_iter();
        Some(parts.map(|part| bound_paths(part, |service| planned.contains(service))).collect())
    }
}

impl CallReporter {
    /// Names this process for each service that it calls without being a service itself.
    fn processes(
        &self,
        calls: &BTreeMap<CallPath, CallRates>,
    ) -> BTreeMap<(ServiceName, Region), BTreeSet<String>> {
        let name = &self.client_id;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        let unnamed = calls.keys().filter(|path| path.caller.is_none() && is_name);
        let process = |path: &CallPath| {
            let name = name.chars().take(MAX_PROCESS_NAME).collect();
            ((path.service.clone(), path.from.clone()), BTreeSet::from([name]))
        };
        unnamed.map(process).collect()
    }
}

/// The same report with as many paths as a message has room for: a look at other services takes no room from planned ones. The
/// services of paths without room are incomplete, since a planner would take the rest for all of their calls.
fn bound_paths(report: TrafficReport, is_planned: impl Fn(&ServiceName) -> bool) -> TrafficReport {
    let (planned, others): (Vec<_>, Vec<_>) =
        merge_paths(report.calls).into_iter().partition(|(path, _)| is_planned(&path.service));
    let mut paths = planned.into_iter().chain(others);
    let calls = paths.by_ref().take(MAX_CALL_PATHS).collect();
    let (mut left_out, mut incomplete) = (report.left_out, report.incomplete);
    for (path, _) in paths {
        left_out += 1;
        incomplete.insert(path.service);
    }
    let all_incomplete = incomplete.len() >= MAX_INCOMPLETE_SERVICES;
    let incomplete = incomplete.into_iter().take(MAX_INCOMPLETE_SERVICES).collect();
    TrafficReport { calls, left_out, incomplete, all_incomplete, ..report }
}

/// Sends the parts of a report; the last response if the receiver has taken all of them.
async fn send_all(upstream: &FollowerHandle, parts: Vec<TrafficReport>) -> Option<v1::ReportSignalsResponse> {
    let mut last = None;
    for part in parts {
        last = Some(send(upstream, part).await?);
    }
    last
}

/// Sends a report, and returns the receiver's response.
async fn send(upstream: &FollowerHandle, report: TrafficReport) -> Option<v1::ReportSignalsResponse> {
    let connection = upstream.connection()?;
    match timeout(INTERVAL, connection.report_signals(report.into())).await {
        Ok(Ok(response)) => Some(response),
        Ok(Err(status)) => {
            tracing::debug!(reason = status.message(), "calls could not be reported");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_call_report_prefers_planned_services_to_watched_ones() {
        let row = |service: String| {
            let path = CallPath {
                service: ServiceName::new(service).unwrap(),
                from: Region::new("eu").unwrap(),
                to: None,
                class: None,
                caller: None,
                from_zone: None,
                to_zone: None,
                parent: None,
            };
            (path, CallRates { offered: 1, ..CallRates::default() })
        };
        let planned = ServiceName::new("shop/zoo").unwrap();
        let looked_at = (0..=MAX_CALL_PATHS).map(|n| row(format!("shop/a{n:04}")));
        let calls = looked_at.chain([row("shop/zoo".to_owned())]).collect();
        let report =
            bound_paths(TrafficReport { calls, ..TrafficReport::default() }, |name| *name == planned);
        assert_eq!((report.calls.len(), report.left_out, report.all_incomplete), (MAX_CALL_PATHS, 2, false));
        assert!(report.calls.keys().any(|path| path.service == planned));
        let cut: Vec<_> = report.incomplete.iter().map(ToString::to_string).collect();
        assert_eq!(cut, ["shop/a4095", "shop/a4096"]);
    }
}
