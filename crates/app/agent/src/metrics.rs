use std::sync::atomic::{AtomicU64, Ordering};

use fairmesh_rib::Node;
use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use crate::{admin::Pages, checker::Counts, signals::Reports};

/// Registers the agent's metrics as they are now.
pub(crate) fn register(Pages { backend, reports, listeners, identity }: &Pages, registry: &mut Registry) {
    let shared = &backend.shared;
    let state = backend.upstream.state().borrow().clone();
    let (count, oldest) = {
        let subscriptions = shared.subscriptions();
        (subscriptions.len(), subscriptions.oldest(Instant::now()))
    };
    gauge(registry, "connected", "1 while connected to an upstream", usize::from(state.connected));
    gauge(registry, "subscriptions", "Prefixes subscribed to", count);
    gauge(registry, "watchers", "Programs that watch this agent", shared.node.watcher_count());
    register_watches(registry, &shared.node);
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(oldest.as_secs_f64());
    registry.register_with_unit("data_age", "Maximum age of the data; 0 while current", Unit::Seconds, age);
    let revision = shared.node.revision().number;
    registry.register("revision", "Last applied revision", ConstGauge::new(revision));
    counter(registry, "deltas", "Deltas received from the upstream", &shared.deltas);
    counter(registry, "snapshots", "Snapshots received from the upstream", &shared.snapshots);
    counter(registry, "save_failures", "Failed writes of copies to disk", &shared.disk.failures);
    let Reports { usages, rates, .. } = reports;
    gauge(registry, "usage_reports_queued", "Usage reports in the queue", usages.queued());
    counter(registry, "usage_reports_dropped", "Usage reports dropped, queue full", usages.dropped());
    counter(registry, "usage_reports_rejected", "Usage reports rejected as invalid", usages.refused());
    gauge(registry, "traffic_reporters", "Programs whose traffic is added up", rates.reporters());
    let help = "Traffic reports left out, since there were too many";
    counter(registry, "traffic_reports_left_out", help, rates.left_out());
    let (maps, bytes) = shared.maps.size();
    gauge(registry, "shared_shard_maps", "Shard maps in shared memory", maps);
    gauge(registry, "shared_shard_map_bytes", "Size of the shard maps in shared memory", bytes);
    checker_metrics(registry, &backend.checks);
    let expires = identity.as_ref().map_or(0, |identity| identity.expires_at().as_secs());
    let help = "When the certificate of this agent expires, in seconds since 1970; 0 without one";
    registry.register("certificate_expiry_timestamp_seconds", help, ConstGauge::new(expires));
    listeners.register(registry);
}

/// The metrics of this agent as a health checker.
fn checker_metrics(registry: &mut Registry, checks: &Counts) {
    registry.register(
        "health_checker",
        "1 while this agent is the elected health checker of its region",
        ConstGauge::new(checks.elected.load(Ordering::Relaxed)),
    );
    let probed = checks.endpoints.load(Ordering::Relaxed);
    registry.register("probed_endpoints", "Endpoints probed by this agent", ConstGauge::new(probed));
    counter(registry, "probes", "Health probes started", &checks.probes);
    counter(registry, "probe_failures", "Failed health probes", &checks.failures);
    counter(registry, "verdicts", "Changed verdicts accepted by the control plane", &checks.verdicts);
    let targets = checks.distance_targets.load(Ordering::Relaxed);
    let help = "Endpoints of other regions to which this agent times round trips";
    registry.register("distance_targets", help, ConstGauge::new(targets));
    counter(registry, "distance_probes", "Measurements of a distance started", &checks.distance_probes);
    let help = "Failed measurements of a distance";
    counter(registry, "distance_probe_failures", help, &checks.distance_failures);
}

fn register_watches(registry: &mut Registry, node: &Node) {
    let followed = node.followed();
    gauge(registry, "followed_prefixes", "Prefixes followed by all watches", followed.count());
    let refused = ConstCounter::new(followed.refused());
    registry.register(
        "followed_prefixes_refused",
        "Prefixes refused because watches follow too many",
        refused,
    );
    let terminated = Family::<[(&str, &str); 1], Counter>::default();
    for (reason, count) in node.terminated_watches().counts() {
        terminated.get_or_create(&[("reason", reason)]).inc_by(count);
    }
    let help = "Watches terminated because their peers exceeded a limit or sent invalid data, by reason";
    registry.register("terminated_watches", help, terminated);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: usize) {
    registry.register(name, help, ConstGauge::new(value as u64));
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: &AtomicU64) {
    registry.register(name, help, ConstCounter::new(value.load(Ordering::Relaxed)));
}
