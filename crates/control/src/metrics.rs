use std::{fmt, sync::Arc};

use fairmesh_listen::Listeners;
use fairmesh_model::Revision;
use fairmesh_registry::FileSource;
use fairmesh_rib::{Node, server::Followed};
use fairmesh_store::{Store, WriteError};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};

use crate::{
    census::{Census, STATES},
    checks::Checks,
    imbalance::Imbalance,
    quotas::Quotas,
};

type Label = [(&'static str, &'static str); 1];

/// What the control plane counts, in the OpenMetrics text format.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    writes: Family<Label, Counter>,
    conflicts: Counter,
    revision: Gauge,
    watchers: Gauge,
    store_bytes: Gauge,
    leases: Gauge,
    endpoints: Family<Label, Gauge>,
    wrong_files: Gauge,
    checkers: Gauge,
    unchecked_regions: Gauge,
    panics: Gauge,
    load_servers: Family<Label, Gauge>,
}

/// Where what is not counted as it happens is read from.
pub(crate) struct Sources {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) node: Node,
    pub(crate) census: Arc<Census>,
    pub(crate) checks: Checks,
    pub(crate) files: Vec<Arc<FileSource>>,
    pub(crate) imbalance: Arc<Imbalance>,
    pub(crate) registry: fairmesh_registry::Registry,
    pub(crate) quotas: Quotas,
    pub(crate) listeners: Listeners,
}

impl Metrics {
    /// Counts a write by what became of it.
    pub(crate) fn wrote(&self, written: &Result<Revision, WriteError>) {
        let outcome = match written {
            Ok(_) => "written",
            Err(WriteError::Conflict(_)) => "conflict",
            Err(WriteError::TooLarge { .. }) => "refused",
            Err(WriteError::Overloaded { .. }) => "overloaded",
            Err(WriteError::DiskFull { .. }) => "disk_full",
            Err(WriteError::Failed { .. } | WriteError::Refused { .. }) => "failed",
            Err(WriteError::Unavailable { .. }) => "away",
            Err(WriteError::Unknown { .. }) => "unknown",
        };
        self.writes.get_or_create(&[("outcome", outcome)]).inc();
        if outcome == "conflict" {
            self.conflicts.inc();
        }
    }

    /// All of them as text.
    pub(crate) fn encode(&self, sources: &Sources) -> Result<String, fmt::Error> {
        self.read(sources);
        let mut text = String::new();
        let mut all = self.registry();
        sources.imbalance.register(all.sub_registry_with_prefix("imbalance"));
        register_load_reports(&sources.registry, all.sub_registry_with_prefix("control"));
        register_declarations(&sources.registry, all.sub_registry_with_prefix("control"));
        register_followed(sources.node.followed(), all.sub_registry_with_prefix("control"));
        register_quotas(&sources.quotas, all.sub_registry_with_prefix("control"));
        sources.listeners.register(all.sub_registry_with_prefix("control"));
        encode(&mut text, &all)?;
        Ok(text)
    }

    fn read(&self, sources: &Sources) {
        self.revision.set(signed(sources.node.revision().number));
        self.watchers.set(signed(sources.node.watcher_count() as u64));
        self.store_bytes.set(signed(sources.store.disk_bytes()));
        self.leases.set(signed(sources.census.leases() as u64));
        let wrong = sources.files.iter().map(|file| file.status().errors.len() as u64).sum();
        self.wrong_files.set(signed(wrong));
        self.checkers.set(signed(sources.checks.checkers() as u64));
        let fleet = sources.checks.check_health();
        self.unchecked_regions.set(signed(fleet.unchecked_regions as u64));
        self.panics.set(signed(fleet.panics as u64));
        let (known, silent) = sources.registry.load_servers();
        for (state, count) in [("known", known), ("silent", silent)] {
            self.load_servers.get_or_create(&[("state", state)]).set(signed(count as u64));
        }
        for (state, count) in STATES.iter().zip(sources.census.counts()) {
            self.endpoints.get_or_create(&[("state", state.as_str())]).set(signed(count as u64));
        }
    }

    /// Names and help texts; the metrics themselves are shared handles.
    fn registry(&self) -> Registry {
        let mut all = Registry::with_prefix("fairmesh");
        all.register(
            "build",
            "Which release this is",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        let control = all.sub_registry_with_prefix("control");
        control.register("revision", "The newest revision that readers are served", self.revision.clone());
        control.register("writes", "Batches by what became of them", self.writes.clone());
        control.register(
            "conflicts",
            "Batches refused since somebody else wrote first",
            self.conflicts.clone(),
        );
        control.register("watchers", "Watches that are open", self.watchers.clone());
        let bytes = self.store_bytes.clone();
        control.register_with_unit(
            "store",
            "The size of the store file; 0 where the store is in etcd",
            Unit::Bytes,
            bytes,
        );
        control.register("leases", "Endpoints that keep a lease", self.leases.clone());
        control.register("endpoints", "Endpoints by state", self.endpoints.clone());
        let wrong = self.wrong_files.clone();
        control.register("checkers", "Regions whose endpoints somebody checks", self.checkers.clone());
        let unchecked = self.unchecked_regions.clone();
        control.register(
            "unchecked_regions",
            "Regions with endpoints to check and nobody who does",
            unchecked,
        );
        let panic = "Services times regions whose verdicts callers ignore, since too much would be left without calls";
        control.register("health_panics", panic, self.panics.clone());
        control.register("wrong_files", "Endpoint files whose newest content is refused", wrong);
        let servers = self.load_servers.clone();
        control.register("shard_load_servers", "Servers by whether their load by shard is known", servers);
        all
    }
}

/// What the registry counts itself.
fn register_load_reports(registry: &fairmesh_registry::Registry, control: &mut Registry) {
    let reports = Family::<Label, Counter>::default();
    for (taken, count) in registry.load_reports() {
        reports.get_or_create(&[("outcome", taken.as_str())]).inc_by(count);
    }
    control.register("shard_load_reports", "Reports of load by shard, by what became of them", reports);
}

/// Services that registrations have declared.
fn register_declarations(registry: &fairmesh_registry::Registry, control: &mut Registry) {
    let (known, refused, removed) = registry.self_declared();
    let declared = Gauge::<i64>::default();
    declared.set(signed(known as u64));
    control.register("self_declared_services", "Services that only a registration has declared", declared);
    let counts = Family::<Label, Counter>::default();
    for (outcome, count) in [("refused", refused), ("removed", removed)] {
        counts.get_or_create(&[("outcome", outcome)]).inc_by(count);
    }
    let help =
        "Declarations by registrations that were refused as too many, or removed after their last endpoint";
    control.register("self_declarations", help, counts);
}

/// The limits that hold for the whole mesh.
fn register_followed(followed: &Followed, control: &mut Registry) {
    let (count, refused) = (Gauge::<i64>::default(), Counter::<u64>::default());
    count.set(signed(followed.count() as u64));
    refused.inc_by(followed.refused());
    control.register("followed_prefixes", "Prefixes that all watches follow", count);
    control.register("followed_prefixes_refused", "Prefixes refused since there are too many", refused);
}

fn register_quotas(quotas: &Quotas, control: &mut Registry) {
    let size = quotas.size();
    let (known, claimed) = (Gauge::<i64>::default(), Gauge::<i64>::default());
    known.set(signed(size.limits as u64));
    claimed.set(signed(size.shares as u64));
    control.register("mesh_limits", "Limits of the whole mesh that callers share", known);
    control.register("mesh_limit_shares", "Parts of them that callers have", claimed);
    let refused = Family::<Label, Counter>::default();
    for (reason, count) in [("undeclared", size.undeclared), ("full", size.full)] {
        refused.get_or_create(&[("reason", reason)]).inc_by(count);
    }
    let help = "Claims that got no part: no policy declares the limit for the mesh, or too many share it";
    control.register("mesh_limit_refusals", help, refused);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
