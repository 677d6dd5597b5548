use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use crate::http::Pages;

/// The agent's metrics now, in the OpenMetrics text format.
pub(crate) fn text(Pages { backend, usages, listeners }: &Pages) -> String {
    let mut registry = Registry::with_prefix("fairmesh_agent");
    let shared = &backend.shared;
    let state = backend.upstream.state().borrow().clone();
    let (count, oldest) = {
        let subscriptions = shared.subscriptions();
        (subscriptions.len(), subscriptions.oldest(Instant::now()))
    };
    gauge(&mut registry, "connected", "Whether an upstream is followed", usize::from(state.connected));
    gauge(&mut registry, "subscriptions", "Prefixes followed", count);
    gauge(&mut registry, "watchers", "Programs that watch", shared.node.watcher_count());
    let followed = shared.node.followed();
    gauge(&mut registry, "followed_prefixes", "Prefixes that all watches follow", followed.count());
    let refused = ConstCounter::new(followed.refused());
    registry.register("followed_prefixes_refused", "Prefixes refused since there are too many", refused);
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(oldest.as_secs_f64());
    registry.register_with_unit("data_age", "How old what is held may be", Unit::Seconds, age);
    let revision = shared.node.revision().number;
    registry.register("revision", "The last revision applied", ConstGauge::new(revision));
    counter(&mut registry, "deltas", "Changes taken from the upstream", &shared.deltas);
    counter(&mut registry, "snapshots", "Snapshots taken from the upstream", &shared.snapshots);
    counter(&mut registry, "save_failures", "Rounds of saving that the disk refused", &shared.disk.failures);
    gauge(&mut registry, "usages_waiting", "Minutes of programs to be passed on", usages.waiting());
    counter(&mut registry, "usages_dropped", "Minutes of programs given up", usages.dropped());
    counter(&mut registry, "usages_refused", "Minutes of programs not taken as they are", usages.refused());
    let (maps, bytes) = shared.maps.size();
    gauge(&mut registry, "shared_maps", "Shard maps that programs read in shared memory", maps);
    gauge(&mut registry, "shared_map_bytes", "The memory of those maps, held once", bytes);
    let checks = &backend.checks;
    registry.register(
        "health_checker",
        "Whether this agent checks its region",
        ConstGauge::new(checks.elected.load(Ordering::Relaxed)),
    );
    let probed = checks.endpoints.load(Ordering::Relaxed);
    registry.register("probed_endpoints", "Endpoints that this agent probes", ConstGauge::new(probed));
    counter(&mut registry, "probes", "Probes of endpoints begun", &checks.probes);
    counter(&mut registry, "probe_failures", "Probes that failed", &checks.failures);
    counter(&mut registry, "verdicts", "Changes of verdicts that the control plane took", &checks.verdicts);
    listeners.register(&mut registry);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: usize) {
    registry.register(name, help, ConstGauge::new(value as u64));
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: &AtomicU64) {
    registry.register(name, help, ConstCounter::new(value.load(Ordering::Relaxed)));
}
