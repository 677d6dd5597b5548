//! Regions report, the planner plans, callers learn of tables.

use std::sync::Arc;

use super::{Engine, EventKind};
use crate::traffic::{Drawn, Round, draw_region};

/// The planner plans at most this often, in nanoseconds.
const MIN_INTERVAL: u64 = 1_000_000_000;
/// The numbers of planning events: with the reports of an interval, or after a change of the registry.
const WITH_REPORTS: u32 = 0;
const AFTER_CHANGE: u32 = 1;

impl Engine {
    /// Draws the region of a new call; returns whether the call is to be sent.
    #[inline]
    pub(super) fn assign_region(&mut self, id: u32) -> bool {
        let Some(traffic) = &mut self.traffic else { return true };
        let request = self.in_flight.get(id);
        let caller = &mut self.callers[request.caller as usize];
        let source = self.caller_groups[caller.group as usize].region;
        let seed = caller.seeds.next();
        let class = traffic.class_of(seed);
        let drawn = match &caller.tables {
            Some(tables) => draw_region(tables, source, class, seed),
            None => Drawn::Region(source),
        };
        traffic.counters.record_offered(source, class, drawn == Drawn::Dropped);
        match drawn {
            Drawn::Region(region) => {
                request.region = caller.tables.as_ref().map(|_| region);
                true
            }
            Drawn::Dropped => {
                self.metrics.record_dropped(self.now);
                self.in_flight.remove(id);
                false
            }
        }
    }

    /// An attempt is sent.
    #[inline]
    pub(super) fn count_sent(&mut self, caller: u32, server: u32) {
        if let Some(traffic) = &mut self.traffic {
            let group = self.callers[caller as usize].group;
            let source = self.caller_groups[group as usize].region;
            traffic.counters.record_sent(source, self.servers[server as usize].region);
        }
    }

    /// Begins the first interval.
    pub(super) fn begin_traffic(&mut self) {
        let Some(traffic) = &mut self.traffic else { return };
        traffic.counters.begin(&mut self.servers, 0);
        let at = traffic.interval();
        self.schedule(at, EventKind::IntervalEnds, 0);
    }

    /// An interval of reports ends.
    pub(super) fn end_interval(&mut self) {
        let Some(traffic) = &mut self.traffic else { return };
        let interval = traffic.counters.end(&mut self.servers, &self.registry, self.now);
        traffic.rounds.push(Round {
            at: self.now as f64 / 1e9,
            loads: interval.loads,
            local: interval.local,
            all_local: interval.all_local,
            dropped: interval.dropped,
            ..Round::default()
        });
        traffic.send_reports(interval.reports, self.now);
        traffic.counters.begin(&mut self.servers, self.now);
        let (arrival, next) = (self.now + traffic.report_delay(), self.now + traffic.interval());
        if traffic.is_planned() {
            self.schedule(arrival, EventKind::PlanDue, WITH_REPORTS);
        }
        self.schedule(next, EventKind::IntervalEnds, 0);
    }

    /// The planner looks at a change of the registry as soon as it may plan again.
    pub(super) fn plan_after_change(&mut self) {
        let Some(traffic) = self.traffic.as_ref().filter(|traffic| traffic.is_planned()) else { return };
        let earliest = traffic.planned_at().map_or(0, |at| at + MIN_INTERVAL);
        self.schedule(earliest.max(self.now), EventKind::PlanDue, AFTER_CHANGE);
    }

    /// Plans, and publishes tables that changed.
    pub(super) fn plan_regions(&mut self, reason: u32) {
        let Some(traffic) = &mut self.traffic else { return };
        if reason == WITH_REPORTS {
            traffic.receive_reports();
        }
        let powers = self.registry.powers(self.one_way_delays.len());
        if !traffic.plan(&powers, self.now) {
            return;
        }
        for id in 0..self.callers.len() {
            let at = self.now + self.callers[id].propagation_delay;
            self.schedule(at, EventKind::TablesUpdate, id as u32);
        }
    }

    /// A caller learns of tables.
    pub(super) fn update_tables(&mut self, id: u32) {
        if let Some(traffic) = &self.traffic {
            self.callers[id as usize].tables = Some(Arc::clone(&traffic.tables));
        }
    }
}
