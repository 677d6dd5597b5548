use std::sync::atomic::Ordering::Relaxed;

use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

use crate::admin_pages::Pages;

/// Registers the current metrics of the replica.
pub(crate) fn register(Pages { backend, rates, listeners }: &Pages, registry: &mut Registry) {
    let shared = &backend.shared;
    let connected = backend.upstream.state().borrow().connected;
    registry.gauge("connected", "1 while connected to an upstream", connected);
    let watchers = shared.node.watcher_count() as u64;
    registry.gauge("watchers", "Agents, replicas and programs that watch this replica", watchers);
    let followed = shared.node.followed();
    registry.gauge("followed_prefixes", "Prefixes followed by all watches", followed.count() as u64);
    let help = "Prefixes refused because watches follow too many";
    registry.counter("followed_prefixes_refused", help, followed.refused());
    let terminated = shared.node.terminated_watches().counts();
    let rows = terminated.map(|(reason, count)| ([("reason", reason.into())], count));
    let help = "Watches terminated because their peers exceeded a limit or sent invalid data, by reason";
    registry.counters("terminated_watches", help, rows);
    registry.gauge("revision", "Last applied revision", shared.node.revision().number);
    let saved = shared.disk.saved.load(Relaxed);
    registry.gauge("saved_revision", "Revision of the copy on disk", saved);
    let acknowledged = shared.node.applied_by_all().number;
    registry.gauge("acknowledged_revision", "Last revision acknowledged by every watcher", acknowledged);
    let age = shared.age().as_secs_f64();
    registry.gauge("data_age_seconds", "Maximum age of the data; 0 while current", age);
    registry.gauge("disk_copy_bytes", "Size of the copy on disk", &shared.disk.bytes);
    registry.counter("deltas", "Deltas received from the upstream", &shared.deltas);
    registry.counter("snapshots", "Snapshots received from the upstream", &shared.snapshots);
    registry.counter("save_failures", "Failed writes of the copy to disk", &shared.disk.failures);
    let reporters = rates.reporters() as u64;
    registry.gauge("traffic_reporters", "Agents and replicas whose traffic is added up", reporters);
    let help = "Traffic reports left out, since there were too many";
    registry.counter("traffic_reports_left_out", help, rates.left_out());
    listeners.register(registry);
}
