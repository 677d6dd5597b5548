use fairmesh_metrics::Register as _;
use fairmesh_rib::Node;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{admin_pages::Pages, health_checker::Counts, reports::Reports, zone_probes::ZoneProbeCounts};

/// Registers the current values of the agent's metrics.
pub(crate) fn register(pages: &Pages, registry: &mut Registry) {
    let Pages { backend, reports, listeners, identity, probing } = pages;
    let shared = &backend.shared;
    let state = backend.upstream.state().borrow().clone();
    let (count, oldest) = {
        let subscriptions = shared.subscriptions();
        (subscriptions.len(), subscriptions.oldest(Instant::now()))
    };
    registry.gauge("connected", "1 while connected to an upstream", state.connected);
    registry.gauge("subscriptions", "Prefixes subscribed to", count);
    registry.gauge("watchers", "Programs that watch this agent", shared.node.watcher_count());
    register_watches(registry, &shared.node);
    let age = oldest.as_secs_f64();
    registry.gauge("data_age_seconds", "Maximum age of the data; 0 while current", age);
    registry.gauge("revision", "Last applied revision", shared.node.revision().number);
    registry.counter("deltas", "Deltas received from the upstream", &shared.deltas);
    registry.counter("snapshots", "Snapshots received from the upstream", &shared.snapshots);
    registry.counter("save_failures", "Failed writes of copies to disk", &shared.disk.failures);
    let Reports { usages, rates, .. } = reports;
    registry.gauge("usage_reports_queued", "Usage reports in the queue", usages.queued());
    registry.counter("usage_reports_dropped", "Usage reports dropped, queue full", usages.dropped());
    registry.counter("usage_reports_rejected", "Usage reports rejected as invalid", usages.refused());
    registry.gauge("traffic_reporters", "Programs whose traffic is added up", rates.reporters());
    let help = "Traffic reports left out, since there were too many";
    registry.counter("traffic_reports_left_out", help, rates.left_out());
    let (maps, bytes) = shared.maps.size();
    registry.gauge("shared_shard_maps", "Shard maps in shared memory", maps);
    registry.gauge("shared_shard_map_bytes", "Size of the shard maps in shared memory", bytes);
    checker_metrics(registry, &backend.checks);
    let expires = identity.as_ref().map_or(0, |identity| identity.expires_at().as_secs());
    let help = "When the certificate of this agent expires, in seconds since 1970; 0 without one";
    registry.gauge("certificate_expiry_timestamp_seconds", help, expires);
    if let Some(counts) = probing {
        register_zone_probes(registry, counts);
    }
    reports.register_calls(registry);
    listeners.register(registry);
}

/// Registers the metrics of this agent as health checker.
fn checker_metrics(registry: &mut Registry, checks: &Counts) {
    let help = "1 while this agent is the elected health checker of its region";
    registry.gauge("health_checker", help, &checks.elected);
    registry.gauge("probed_endpoints", "Endpoints probed by this agent", &checks.endpoints);
    registry.counter("probes", "Health probes started", &checks.probes);
    registry.counter("probe_failures", "Failed health probes", &checks.failures);
    registry.counter("verdicts", "Changed verdicts accepted by the control plane", &checks.verdicts);
    let help = "Endpoints of other regions to which this agent times round trips";
    registry.gauge("distance_targets", help, &checks.distance_targets);
    registry.counter("distance_probes", "Measurements of a distance started", &checks.distance_probes);
    let help = "Failed measurements of a distance";
    registry.counter("distance_probe_failures", help, &checks.distance_failures);
}

/// Registers the metrics of probes between agents.
fn register_zone_probes(registry: &mut Registry, counts: &ZoneProbeCounts) {
    registry.gauge("zone_probe_targets", "Other agents that this agent probes at present", &counts.targets);
    registry.counter("zone_probes", "Probes of other agents", &counts.probes);
    let help = "Probes of other agents that failed by one protocol or more";
    registry.counter("zone_probe_failures", help, &counts.failures);
    let help = "Reports of probes that no control plane took";
    registry.counter("zone_probe_report_failures", help, &counts.report_failures);
}

fn register_watches(registry: &mut Registry, node: &Node) {
    let followed = node.followed();
    registry.gauge("followed_prefixes", "Prefixes followed by all watches", followed.count());
    let help = "Prefixes refused because watches follow too many";
    registry.counter("followed_prefixes_refused", help, followed.refused());
    let terminated = node.terminated_watches().counts();
    let rows = terminated.map(|(reason, count)| ([("reason", reason.into())], count));
    let help = "Watches terminated because their peers exceeded a limit or sent invalid data, by reason";
    registry.counters("terminated_watches", help, rows);
}
