use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};

use crate::admin::Pages;

/// Registers the replica's present metrics.
pub(crate) fn register(Pages { backend, rates, listeners }: &Pages, registry: &mut Registry) {
    let shared = &backend.shared;
    let connected = backend.upstream.state().borrow().connected;
    gauge(registry, "connected", "1 while connected to an upstream", u64::from(connected));
    let watchers = shared.node.watcher_count() as u64;
    gauge(registry, "watchers", "Agents, replicas and programs that watch this replica", watchers);
    let followed = shared.node.followed();
    gauge(registry, "followed_prefixes", "Prefixes followed by all watches", followed.count() as u64);
    let refused = ConstCounter::new(followed.refused());
    registry.register(
        "followed_prefixes_refused",
        "Prefixes refused because watches follow too many",
        refused,
    );
    let terminated = Family::<[(&str, &str); 1], Counter>::default();
    for (reason, count) in shared.node.terminated_watches().counts() {
        terminated.get_or_create(&[("reason", reason)]).inc_by(count);
    }
    let help = "Watches terminated because their peers exceeded a limit or sent invalid data, by reason";
    registry.register("terminated_watches", help, terminated);
    gauge(registry, "revision", "Last applied revision", shared.node.revision().number);
    let saved = shared.disk.saved.load(Relaxed);
    gauge(registry, "saved_revision", "Revision of the copy on disk", saved);
    let acknowledged = shared.node.applied_by_all().number;
    gauge(registry, "acknowledged_revision", "Last revision acknowledged by every watcher", acknowledged);
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(shared.age().as_secs_f64());
    registry.register_with_unit("data_age", "Maximum age of the data; 0 while current", Unit::Seconds, age);
    let on_disk = ConstGauge::new(shared.disk.bytes.load(Relaxed));
    registry.register_with_unit("disk_copy", "Size of the copy on disk", Unit::Bytes, on_disk);
    counter(registry, "deltas", "Deltas received from the upstream", &shared.deltas);
    counter(registry, "snapshots", "Snapshots received from the upstream", &shared.snapshots);
    counter(registry, "save_failures", "Failed writes of the copy to disk", &shared.disk.failures);
    let reporters = rates.reporters() as u64;
    gauge(registry, "traffic_reporters", "Agents and replicas whose traffic is added up", reporters);
    let help = "Traffic reports left out, since there were too many";
    counter(registry, "traffic_reports_left_out", help, rates.left_out());
    listeners.register(registry);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    registry.register(name, help, ConstGauge::new(value));
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: &AtomicU64) {
    registry.register(name, help, ConstCounter::new(value.load(Relaxed)));
}
