use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_controllers::MonotonicClock;
use fairmesh_model::{CountReport, Region, ServiceName, TrafficReport};
use fairmesh_planner::ServiceReports;
use fairmesh_rib::Node;
use fairmesh_signals::{IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, ReportSource, ReportSums, SumLimits, Taken};
use fairmesh_wire::v1;

use super::{CallViews, watched_graph::WatchedGraph, watched_services::WatchedServices};
use crate::planner_facts::FactsIndex;

/// Time after which the facts get a new sum even if no report has arrived, in milliseconds, because missing reports
/// are a change too.
const SILENCE_MS: u64 = 5_000;

/// The latest reports of calls and load, and the services whose calls operators watch.
#[derive(Debug)]
pub(crate) struct TrafficReports {
    pub(super) node: Node,
    pub(super) facts: Arc<FactsIndex>,
    /// The counts of all calls.
    pub(crate) counts: Arc<CallViews>,
    clock: MonotonicClock,
    sums: Mutex<ReportSums>,
    summed: Mutex<Summed>,
    watched: Mutex<WatchedServices>,
    graph: Mutex<WatchedGraph>,
    taken: AtomicU64,
    full: AtomicU64,
}

/// State of the reports in the last sum.
#[derive(Debug, Default)]
struct Summed {
    /// Number of reports that had arrived at the time of the sum.
    taken: u64,
    /// Services whose reports were summed.
    planned: Arc<BTreeSet<ServiceName>>,
    at_ms: u64,
}

impl TrafficReports {
    /// Creates an empty collection. `facts` receive the sums for services that have a planner.
    pub(crate) fn new(node: Node, facts: Arc<FactsIndex>, clock: MonotonicClock) -> Self {
        Self {
            node,
            facts,
            counts: Arc::new(CallViews::new(clock)),
            clock,
            sums: Mutex::new(ReportSums::new(SumLimits::TREE)),
            summed: Mutex::default(),
            watched: Mutex::default(),
            graph: Mutex::default(),
            taken: AtomicU64::new(0),
            full: AtomicU64::new(0),
        }
    }

    /// Records a report of `source`. The response says when the sender should report again, and which services to report
    /// in addition to those with a planner.
    pub(crate) fn record(&self, source: &ReportSource, report: TrafficReport) -> v1::ReportSignalsResponse {
        let now_ms = self.now_ms();
        // A report without a planned service tells the planner that the region has no share in any.
        let is_planned = !self.facts.planned().is_empty();
        if self.sums().record(source, report, now_ms) == Taken::Full {
            self.full.fetch_add(1, Relaxed);
        }
        self.taken.fetch_add(1, Relaxed);
        self.facts.notify();
        self.observe_graph(now_ms);
        let watched = self.watched().names(now_ms);
        let next = if is_planned || !watched.is_empty() { REPORT_INTERVAL_MS } else { IDLE_INTERVAL_MS };
        v1::ReportSignalsResponse { next_report_ms: next as u32, watched, ..Default::default() }
    }

    /// Records counts of calls, with the prices and regions of the topology. Blocks while a view is read.
    pub(super) fn record_counts(
        &self,
        source: &ReportSource,
        counts: CountReport,
    ) -> v1::ReportSignalsResponse {
        let topology = self.facts.topology();
        let is_known = |region: &Region| self.facts.lock().has_region(region);
        self.counts.record(source, counts, &topology.regions.egress, is_known)
    }

    /// Updates the facts of planned services from the reports. Does nothing if no report has arrived since the last
    /// update and none can have expired.
    pub(crate) fn update_facts(&self) {
        let (now_ms, planned, taken) = (self.now_ms(), self.facts.planned(), self.taken());
        if planned.is_empty() {
            return;
        }
        let mut summed = lock(&self.summed);
        let is_known = summed.taken == taken && Arc::ptr_eq(&summed.planned, &planned);
        if is_known && now_ms.saturating_sub(summed.at_ms) < SILENCE_MS {
            return;
        }
        *summed = Summed { taken, planned: Arc::clone(&planned), at_ms: now_ms };
        let mut reports = self.sums();
        let sums = reports.sums_by_service(&planned, now_ms);
        let heard = sums.heard().clone();
        for (service, sum) in sums {
            // Locked per service, so that commits can be applied in between.
            self.facts.lock().set_reports(service, ServiceReports::new(sum, heard.clone(), now_ms));
        }
    }

    /// The sum of all reports, and the time at which it was formed.
    pub(crate) fn sum_of_all(&self) -> (TrafficReport, u64) {
        let now_ms = self.now_ms();
        (self.sums().sum_of_all(now_ms), now_ms)
    }

    /// Number of call paths and server groups for which reports had no room.
    pub(crate) fn left_out(&self) -> u32 {
        let now_ms = self.now_ms();
        self.sums().left_out(now_ms)
    }

    /// Number of reports that have arrived.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Number of reports that were dropped because there were too many reporters.
    pub(super) fn full(&self) -> u64 {
        self.full.load(Relaxed)
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(super) fn sums(&self) -> MutexGuard<'_, ReportSums> {
        lock(&self.sums)
    }

    pub(super) fn watched(&self) -> MutexGuard<'_, WatchedServices> {
        lock(&self.watched)
    }

    pub(super) fn graph(&self) -> MutexGuard<'_, WatchedGraph> {
        lock(&self.graph)
    }
}

/// Locks a mutex and ignores poisoning, since its values are consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{Protocol, Record, RecordKey, Service, ServiceKind, StoreId};
    use fairmesh_rib::Commit;
    use fairmesh_signals::MAX_WATCHED_SERVICES;
    use fairmesh_wire::record_encoding;
    use tokio::time::advance;
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn viewed_service_is_watched_one_minute_and_too_many_are_refused() {
        let names: Vec<ServiceName> =
            (0..=MAX_WATCHED_SERVICES).map(|n| ServiceName::new(format!("shop/s{n:02}")).unwrap()).collect();
        let node = Node::new(StoreId(1));
        let declared = record_encoding::encode(&Record::Service(Service {
            kind: ServiceKind::Replicated,
            protocol: Protocol::Http1,
            virtual_address: None,
            identity: None,
        }));
        let change = |name: &ServiceName| {
            (RecordKey::Service(name.clone()).to_string().into(), Some(declared.clone()))
        };
        node.apply(Commit { revision: 1, changes: names.iter().map(change).collect() });
        let reports = TrafficReports::new(node, Arc::default(), MonotonicClock::start());
        let told = || reports.record(&ReportSource::of_mesh(), TrafficReport::default());
        assert_eq!((told().watched, told().next_report_ms), (Vec::new(), IDLE_INTERVAL_MS as u32));

        let unknown = reports.calls(Some(&ServiceName::new("shop/none").unwrap()), None).unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        reports.calls(None, None).unwrap();
        assert!(told().watched.is_empty(), "a look at what there is asks for nothing");
        for name in &names[..MAX_WATCHED_SERVICES] {
            assert_eq!(reports.calls(Some(name), None).unwrap().watched_ms, Some(0));
        }
        let full = reports.calls(Some(&names[MAX_WATCHED_SERVICES]), None).unwrap_err();
        assert_eq!(full.code(), Code::ResourceExhausted);
        assert!(full.message().contains("64 other services are looked at"), "{full:?}");
        assert!(full.message().contains("try again in 60 s"), "{full:?}");
        assert_eq!((told().watched.len(), told().next_report_ms), (64, REPORT_INTERVAL_MS as u32));
        advance(Duration::from_secs(60)).await;
        assert_eq!((told().watched, told().next_report_ms), (Vec::new(), IDLE_INTERVAL_MS as u32));
    }
}
