use std::sync::Arc;

use fairmesh_controllers::Statuses;
use fairmesh_gateway_control::GatewayLoads;
use fairmesh_listen::Listeners;
use fairmesh_metrics::Register as _;
use fairmesh_model::Revision;
use fairmesh_registry::FileSource;
use fairmesh_rib::Node;
use fairmesh_store::{Store, WriteError};
use fairmesh_traces::Traces;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::{
    audit::AuditLog,
    controllers,
    endpoint_counts::{EndpointCounts, STATES},
    health_checks::Checks,
    imbalance::Imbalance,
    rate_limits::Quotas,
    traffic::TrafficPlanning,
    zone_probes::ZoneProbes,
};

type Label = [(&'static str, &'static str); 1];

/// Outcomes of writes. Each has a series from the start, since `increase` in PromQL does not count a
/// counter's first value.
const OUTCOMES: [&str; 8] =
    ["written", "conflict", "too_large", "overloaded", "disk_full", "failed", "unavailable", "unknown"];

/// Metrics of the control plane.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    writes: Family<Label, Counter>,
    conflicts: Counter,
    revision: Gauge,
    watchers: Gauge,
    store_bytes: Gauge,
    leases: Gauge,
    endpoints: Family<Label, Gauge>,
    invalid_files: Gauge,
    checkers: Gauge,
    checker_candidates: Gauge,
    unchecked_regions: Gauge,
    panics: Gauge,
    load_servers: Family<Label, Gauge>,
}

/// Sources of the values that are read for each scrape.
pub(crate) struct MetricSources {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) node: Node,
    pub(crate) endpoint_counts: Arc<EndpointCounts>,
    pub(crate) checks: Checks,
    pub(crate) files: Vec<Arc<FileSource>>,
    pub(crate) registry: fairmesh_registry::Registry,
    pub(crate) quotas: Quotas,
    pub(crate) observed: Observed,
    pub(crate) listeners: Listeners,
}

/// State that operators see through both calls and metrics. Clones share the state.
#[derive(Clone)]
pub(crate) struct Observed {
    pub(crate) audit: AuditLog,
    pub(crate) controllers: Statuses,
    pub(crate) imbalance: Arc<Imbalance>,
    pub(crate) planning: TrafficPlanning,
    pub(crate) probes: ZoneProbes,
    pub(crate) gateway: GatewayLoads,
    /// The stored traces, if this control plane receives spans.
    pub(crate) traces: Option<Traces>,
}

impl Metrics {
    /// Counts a write by its outcome.
    pub(crate) fn count_write(&self, written: &Result<Revision, WriteError>) {
        let outcome = match written {
            Ok(_) => "written",
            Err(WriteError::Conflict(_)) => "conflict",
            Err(WriteError::TooLarge { .. }) => "too_large",
            Err(WriteError::Overloaded { .. }) => "overloaded",
            Err(WriteError::DiskFull { .. }) => "disk_full",
            Err(WriteError::Failed { .. } | WriteError::Refused { .. }) => "failed",
            Err(WriteError::Unavailable { .. }) => "unavailable",
            Err(WriteError::Unknown { .. }) => "unknown",
        };
        self.writes.get_or_create(&[("outcome", outcome)]).inc();
        if outcome == "conflict" {
            self.conflicts.inc();
        }
    }

    /// Registers all metrics with their current values.
    pub(crate) fn register(&self, sources: &MetricSources, all: &mut Registry) {
        self.read(sources);
        let Observed { audit, controllers, imbalance, planning, probes, gateway, traces } = &sources.observed;
        self.register_own(all.sub_registry_with_prefix("control"));
        imbalance.register(all.sub_registry_with_prefix("imbalance"));
        register_load_reports(&sources.registry, all.sub_registry_with_prefix("control"));
        register_declarations(&sources.registry, all.sub_registry_with_prefix("control"));
        register_unhealthy(&sources.checks, all.sub_registry_with_prefix("control"));
        register_watches(&sources.node, all.sub_registry_with_prefix("control"));
        register_quotas(&sources.quotas, all.sub_registry_with_prefix("control"));
        controllers::register(controllers, all.sub_registry_with_prefix("control"));
        let lost = Counter::<u64>::default();
        lost.inc_by(audit.lost());
        let help = "Writes that are missing in the log of writes";
        all.sub_registry_with_prefix("control").register("audit_entries_lost", help, lost);
        probes.register(all.sub_registry_with_prefix("control"));
        gateway.register(all.sub_registry_with_prefix("control"));
        if let Some(traces) = traces {
            register_traces(traces, all.sub_registry_with_prefix("control"));
        }
        planning.reports().register(all.sub_registry_with_prefix("traffic"));
        planning.register(all.sub_registry_with_prefix("traffic"));
        sources.listeners.register(all.sub_registry_with_prefix("control"));
    }

    fn read(&self, sources: &MetricSources) {
        self.revision.set(signed(sources.node.revision().number));
        self.watchers.set(signed(sources.node.watcher_count() as u64));
        self.store_bytes.set(signed(sources.store.disk_bytes()));
        self.leases.set(signed(sources.endpoint_counts.leases() as u64));
        let invalid_files = sources.files.iter().map(|file| file.status().errors.len() as u64).sum();
        self.invalid_files.set(signed(invalid_files));
        self.checkers.set(signed(sources.checks.checkers() as u64));
        self.checker_candidates.set(signed(sources.checks.checker_candidates() as u64));
        let fleet = sources.checks.check_health();
        self.unchecked_regions.set(signed(fleet.unchecked_regions as u64));
        self.panics.set(signed(fleet.panics as u64));
        let (known, silent) = sources.registry.load_servers();
        for (state, count) in [("known", known), ("silent", silent)] {
            self.load_servers.get_or_create(&[("state", state)]).set(signed(count as u64));
        }
        for (state, count) in STATES.iter().zip(sources.endpoint_counts.counts()) {
            self.endpoints.get_or_create(&[("state", state.as_str())]).set(signed(count as u64));
        }
    }

    /// Registers the metrics in this struct under their names. Metrics are handles, so clones share the values.
    fn register_own(&self, control: &mut Registry) {
        for outcome in OUTCOMES {
            drop(self.writes.get_or_create(&[("outcome", outcome)]));
        }
        control.register("revision", "Last revision served to readers", self.revision.clone());
        control.register("writes", "Batches written, by outcome", self.writes.clone());
        control.register(
            "write_conflicts",
            "Batches refused because a record had changed",
            self.conflicts.clone(),
        );
        control.register("watchers", "Open watches", self.watchers.clone());
        let bytes = self.store_bytes.clone();
        control.register_with_unit(
            "store",
            "Size of the store file; 0 if the store is in etcd",
            Unit::Bytes,
            bytes,
        );
        control.register("leases", "Endpoints with a live lease", self.leases.clone());
        control.register("endpoints", "Endpoints by state", self.endpoints.clone());
        let invalid_files = self.invalid_files.clone();
        control.register("checkers", "Regions with an elected health checker", self.checkers.clone());
        let help = "Agents that stand for election as health checkers, the elected included";
        control.register("checker_candidates", help, self.checker_candidates.clone());
        let unchecked = self.unchecked_regions.clone();
        control.register(
            "unchecked_regions",
            "Regions with endpoints to check and without a health checker",
            unchecked,
        );
        let panic = "Pairs of service and region at the panic threshold, whose verdicts callers ignore";
        control.register("health_panics", panic, self.panics.clone());
        control.register("invalid_source_files", "Endpoint files with invalid content", invalid_files);
        let servers = self.load_servers.clone();
        control.register(
            "shard_load_servers",
            "Servers that report load by shard, by state of the report",
            servers,
        );
    }
}

/// Registers the counters of the registry.
fn register_load_reports(registry: &fairmesh_registry::Registry, control: &mut Registry) {
    let reports = Family::<Label, Counter>::default();
    for (taken, count) in registry.load_reports() {
        reports.get_or_create(&[("outcome", taken.as_str())]).inc_by(count);
    }
    control.register("shard_load_reports", "Reports of load by shard, by outcome", reports);
}

/// Registers the counters of services declared by registrations.
fn register_declarations(registry: &fairmesh_registry::Registry, control: &mut Registry) {
    let (known, refused, removed) = registry.self_declared();
    let declared = Gauge::<i64>::default();
    declared.set(signed(known as u64));
    control.register("self_declared_services", "Services declared only by a registration", declared);
    let counts = Family::<Label, Counter>::default();
    for (outcome, count) in [("refused", refused), ("removed", removed)] {
        counts.get_or_create(&[("outcome", outcome)]).inc_by(count);
    }
    let help = "Declarations by registrations refused at the maximum, or removed after their last endpoint";
    control.register("self_declarations", help, counts);
}

/// Registers the number of unhealthy endpoints by region.
fn register_unhealthy(checks: &Checks, control: &mut Registry) {
    let unhealthy = Family::<[(&'static str, String); 1], Gauge>::default();
    for (region, count) in checks.unhealthy_endpoints() {
        unhealthy.get_or_create(&[("region", region.to_string())]).set(signed(count as u64));
    }
    control.register(
        "unhealthy_endpoints",
        "Endpoints that health checks find unhealthy, by region",
        unhealthy,
    );
}

/// Registers the number of watched prefixes and of terminated watches.
fn register_watches(node: &Node, control: &mut Registry) {
    let followed = node.followed();
    let (count, refused) = (Gauge::<i64>::default(), Counter::<u64>::default());
    count.set(signed(followed.count() as u64));
    refused.inc_by(followed.refused());
    control.register("followed_prefixes", "Prefixes followed by all watches", count);
    control.register(
        "followed_prefixes_refused",
        "Prefixes refused because watches follow too many",
        refused,
    );
    let terminated = Family::<Label, Counter>::default();
    for (reason, count) in node.terminated_watches().counts() {
        terminated.get_or_create(&[("reason", reason)]).inc_by(count);
    }
    let help = "Watches terminated because their peers exceeded a limit or sent invalid data, by reason";
    control.register("terminated_watches", help, terminated);
}

fn register_traces(traces: &Traces, control: &mut Registry) {
    let (count, bytes, left_out) = traces.size();
    control.gauge(
        "traces",
        "Traces that are kept: the slowest and the failed of the last hour",
        count as u64,
    );
    control.gauge("traces_bytes", "Bytes of these traces", bytes as u64);
    control.counter("traces_left_out_spans", "Spans that had no room", left_out);
}

/// Registers the metrics of mesh-wide limits.
fn register_quotas(quotas: &Quotas, control: &mut Registry) {
    let stats = quotas.stats();
    let (known, claimed) = (Gauge::<i64>::default(), Gauge::<i64>::default());
    known.set(signed(stats.limits as u64));
    claimed.set(signed(stats.shares as u64));
    control.register("mesh_limits", "Mesh-wide limits in use", known);
    control.register("mesh_limit_shares", "Callers with a part of a mesh-wide limit", claimed);
    let refused = Family::<Label, Counter>::default();
    for (reason, count) in [("undeclared", stats.undeclared), ("full", stats.full)] {
        refused.get_or_create(&[("reason", reason)]).inc_by(count);
    }
    let help = "Refused claims of mesh-wide limits, by reason";
    control.register("mesh_limit_refusals", help, refused);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
