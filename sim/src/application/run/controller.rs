//! The planner of an application: facts by service, as in a control plane, and the planner that makes tables from them.

use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{
    Confirmation, Invalid, LoadRing, Region, RegionTable, ServiceName, Share, TableOrigin, Traffic,
    TrafficPlanner, TrafficReport,
};
use fairmesh_planner::{
    Attempt, InSequence, MeshPlanner, Now, ServiceFacts, ServiceReports, StoredTable, TableWrite,
    TopologyFacts, Verdict,
};
use fairmesh_signals::{ReportSource, ReportSums, SumLimits};
use serde::{Deserialize, Serialize};

use super::{contender::Contender, reports::Names};
use crate::application::Scenario;

/// Planner of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Planner {
    /// The rings planner of each service.
    Rings,
    /// Waterfall, filling regions up to the load in the scenario.
    Waterfall,
    /// Waterfall, filling regions up to the load that is best for the scenario's rates according to the model.
    WaterfallBest,
    /// Ring by criticality.
    Criticality,
    /// The optimizer, which learns its model from reports.
    Optimizer,
    /// The optimizer without corrections of its model by the measured effect of its plans.
    OptimizerAlone,
    /// The optimizer with the true model from the start. It knows events of servers as they happen, but nothing about
    /// caches.
    Oracle,
}

impl Planner {
    /// The planners compared in reports, in display order.
    pub const ALL: [Self; 6] =
        [Self::Rings, Self::Waterfall, Self::WaterfallBest, Self::Criticality, Self::Optimizer, Self::Oracle];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rings => "rings",
            Self::Waterfall => "waterfall",
            Self::WaterfallBest => "waterfall-best",
            Self::Criticality => "criticality",
            Self::Optimizer => "optimizer",
            Self::OptimizerAlone => "optimizer-alone",
            Self::Oracle => "oracle",
        }
    }
}

/// Facts, and the planner that uses them.
#[derive(Debug)]
pub(super) struct Controller {
    kind: Kind,
    names: Names,
    /// Facts by service.
    facts: Vec<Arc<ServiceFacts>>,
    topology: TopologyFacts,
    sums: ReportSums,
    revision: u64,
}

#[derive(Debug)]
enum Kind {
    /// The production planners.
    Mesh(Box<MeshPlanner>),
    Contender(Box<Contender>),
}

impl Controller {
    pub(super) fn new(scenario: &Scenario, planner: Planner, names: &Names) -> Result<Self, Invalid> {
        let kind = match planner {
            Planner::Rings | Planner::Optimizer => Kind::Mesh(Box::default()),
            Planner::OptimizerAlone => Kind::Mesh(Box::new(MeshPlanner::without_adjustment())),
            other => Kind::Contender(Box::new(Contender::new(scenario, other, names)?)),
        };
        let traffic = policy(scenario, planner)?;
        let facts = |service: &ServiceName| {
            let traffic = Traffic { classes: names.classes(service), ..traffic.clone() };
            Arc::new(ServiceFacts { traffic, ..ServiceFacts::default() })
        };
        let (regions, round_trips) = scenario.places();
        Ok(Self {
            kind,
            names: names.clone(),
            facts: names.services.iter().map(facts).collect(),
            topology: TopologyFacts { regions, round_trips, ..TopologyFacts::default() },
            sums: ReportSums::new(SumLimits::TREE),
            revision: 0,
        })
    }

    /// Receives reports.
    pub(super) fn receive(&mut self, reports: Vec<TrafficReport>, now: u64) {
        for report in reports {
            self.sums.record(&ReportSource::of_mesh(), report, now / 1_000_000);
        }
    }

    /// Plans with the power of each service's servers by region. Returns the services and regions whose shares changed.
    pub(super) fn plan(&mut self, serving: &[Vec<Vec<u32>>], now_nanos: u64) -> Vec<(u16, u16)> {
        let now_ms = now_nanos / 1_000_000;
        let now = Now { ms: now_ms, started_ms: 0, wall_ms: now_ms };
        self.collect_facts(serving, now_ms);
        let writes: Vec<(usize, Vec<TableWrite>)> = match &mut self.kind {
            Kind::Mesh(planner) => {
                planner.observe(&self.sums.sum_of_all(now_ms), now_ms);
                let facts = self.names.services.iter().cloned().zip(self.facts.iter().cloned()).collect();
                let rounds = planner.round(&facts, &self.topology, &InSequence, now).into_iter();
                rounds
                    .filter_map(|round| Some((self.names.position(&round.service)?, round.tables)))
                    .collect()
            }
            Kind::Contender(contender) => {
                let tables = contender.plan(&self.facts, &self.names, now_nanos);
                let origin = TableOrigin::Planned(Confirmation { round: self.revision, at_ms: now_ms });
                tables.into_iter().map(|(at, shares)| (at, contender_writes(shares, origin))).collect()
            }
        };
        let changed = writes.iter().flat_map(|(service, writes)| self.write(*service, writes)).collect();
        if let Kind::Mesh(planner) = &mut self.kind {
            for (service, writes) in writes.iter().filter(|(_, writes)| !writes.is_empty()) {
                planner.written(&self.names.services[*service], &self.facts[*service], writes, now);
            }
        }
        changed
    }

    /// The table of a service for callers in a region.
    pub(super) fn table(&self, service: u16, region: u16) -> Option<&RegionTable> {
        let region = &self.names.regions[usize::from(region)];
        Some(&self.facts[usize::from(service)].tables.get(region)?.table)
    }

    /// The latest plan changes that the optimizer tried out.
    pub(super) fn attempts(&self) -> Vec<Attempt> {
        let Kind::Mesh(planner) = &self.kind else { return Vec::new() };
        let plans = planner.services().values().filter_map(|service| match &service.verdict {
            Some(Verdict::Optimized(plan)) => Some(plan),
            _ => None,
        });
        plans.flat_map(|plan| plan.adjustments.attempts.clone()).collect()
    }

    fn collect_facts(&mut self, serving: &[Vec<Vec<u32>>], now_ms: u64) {
        let services: BTreeSet<_> = self.names.services.iter().cloned().collect();
        let mut sums = self.sums.sums_by_service(&services, now_ms);
        let heard = sums.heard().clone();
        for (service, sum) in &mut sums {
            if let Some(at) = self.names.position(service) {
                Arc::make_mut(&mut self.facts[at]).reports = ServiceReports::new(sum, heard.clone(), now_ms);
            }
        }
        for (facts, by_region) in self.facts.iter_mut().zip(serving) {
            let facts = Arc::make_mut(facts);
            facts.version += 1;
            facts.endpoints.clear();
            for (region, powers) in self.names.regions.iter().zip(by_region) {
                for power in powers {
                    facts.endpoints.entry(region.clone()).or_default().add(None, Some(*power));
                }
            }
        }
    }

    /// Applies writes immediately; none fails. Returns all writes except pure confirmations.
    fn write(&mut self, service: usize, writes: &[TableWrite]) -> Vec<(u16, u16)> {
        self.revision += u64::from(!writes.is_empty());
        let tables = &mut Arc::make_mut(&mut self.facts[service]).tables;
        let mut changed = Vec::new();
        for TableWrite { from, table, .. } in writes {
            let before = match table.clone() {
                Some(table) => tables.insert(from.clone(), StoredTable { table, revision: self.revision }),
                None => tables.remove(from),
            };
            if before.map(|stored| stored.table.shares) != table.as_ref().map(|table| table.shares.clone())
                && let Some(region) = self.names.regions.iter().position(|name| name == from)
            {
                changed.push((service as u16, region as u16));
            }
        }
        changed
    }
}

fn contender_writes(
    shares: Vec<(Region, fairmesh_model::TrafficShares)>,
    origin: TableOrigin,
) -> Vec<TableWrite> {
    let write =
        |(from, shares)| TableWrite { from, table: Some(RegionTable::new(shares, origin)), replaces: None };
    shares.into_iter().map(write).collect()
}

/// The policy of all services, without their classes.
fn policy(scenario: &Scenario, planner: Planner) -> Result<Traffic, Invalid> {
    let loads = scenario.rings.iter().map(|ring| Share::of_millionths((ring.load * 1e6).round() as u32));
    let rings = scenario.router_rings()?.into_iter().zip(loads);
    Ok(Traffic {
        planner: Some(match planner {
            Planner::Optimizer | Planner::OptimizerAlone => TrafficPlanner::Optimizer,
            _ => TrafficPlanner::Rings,
        }),
        rings: rings
            .map(|(ring, load)| Ok(LoadRing { ring, load: load? }))
            .collect::<Result<_, Invalid>>()?,
        ..Traffic::default()
    })
}
