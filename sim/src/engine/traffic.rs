//! Reports of regions, planning, and tables for callers.

use super::{Engine, EventKind};
use crate::{application::CallEnd, traffic::Round};

/// Numbers of planning events: reports arrive, or a plan is due.
const REPORTS_ARRIVE: u32 = 0;
const PLAN: u32 = 1;

impl Engine {
    /// Draws the class of a new call, which determines its shares in a table.
    #[inline]
    pub(super) fn assign_class(&mut self, id: u32) {
        let Some(traffic) = &mut self.traffic else { return };
        let request = self.in_flight.get(id);
        let caller = &mut self.callers[request.caller as usize];
        let source = self.caller_groups[caller.group as usize].region;
        let class = traffic.class_of(caller.seeds.next());
        request.class = class as u16;
        traffic.counters.record_offered(source, class);
    }

    /// Records that the region's table drops a call.
    pub(super) fn drop_call(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        if let Some(traffic) = &mut self.traffic {
            let group = self.callers[request.caller as usize].group;
            let source = self.caller_groups[group as usize].region;
            traffic.counters.record_dropped(source, request.class.into());
        }
        self.metrics.record_dropped(self.now);
        self.end_call(id, CallEnd::Dropped);
        self.in_flight.remove(id);
    }

    /// Counts an attempt that is sent.
    #[inline]
    pub(super) fn count_sent(&mut self, caller: u32, class: u16, server: u32) {
        if let Some(traffic) = &mut self.traffic {
            let group = self.callers[caller as usize].group;
            let source = self.caller_groups[group as usize].region;
            traffic.counters.record_sent(source, class.into(), self.servers[server as usize].region);
        }
    }

    /// Counts a response to an attempt.
    #[inline]
    pub(super) fn count_answered(&mut self, id: u32) {
        let Some(traffic) = &mut self.traffic else { return };
        let request = self.in_flight.get(id);
        let group = self.callers[request.caller as usize].group;
        let source = self.caller_groups[group as usize].region;
        let to = self.servers[request.server as usize].region;
        let time = self.now.saturating_sub(request.began);
        traffic.counters.record_answered(source, request.class.into(), (to, time));
    }

    /// Starts the first interval.
    pub(super) fn begin_traffic(&mut self) {
        let Some(traffic) = &mut self.traffic else { return };
        traffic.counters.begin(&mut self.servers, 0);
        let at = traffic.interval();
        self.schedule(at, EventKind::IntervalEnds, 0);
    }

    /// Ends a report interval.
    pub(super) fn end_interval(&mut self) {
        if self.application.is_some() {
            return self.end_application_interval();
        }
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
        let arrivals = traffic.send_reports(interval.reports, self.now);
        traffic.counters.begin(&mut self.servers, self.now);
        let next = self.now + traffic.interval();
        for arrival in arrivals {
            self.schedule(arrival, EventKind::PlanDue, REPORTS_ARRIVE);
        }
        self.schedule(next, EventKind::IntervalEnds, 0);
    }

    /// Lets the planner look at changes as soon as it may plan again.
    pub(super) fn plan_after_change(&mut self) {
        if let Some(at) = self.traffic.as_mut().and_then(|traffic| traffic.request_plan(self.now)) {
            self.schedule(at, EventKind::PlanDue, PLAN);
        }
    }

    /// Delivers reports, or plans and publishes changed tables.
    pub(super) fn plan_regions(&mut self, reason: u32) {
        if self.application.is_some() {
            return self.plan_application();
        }
        let Some(traffic) = &mut self.traffic else { return };
        if reason == REPORTS_ARRIVE {
            traffic.receive_reports(self.now);
            return self.plan_after_change();
        }
        let servers = self.registry.serving(0, self.one_way_delays.len());
        if !traffic.plan(&servers, self.now) {
            return;
        }
        for id in 0..self.callers.len() {
            let at = self.now + self.callers[id].propagation_delay;
            self.schedule(at, EventKind::TablesUpdate, id as u32);
        }
    }

    /// Applies new tables at a caller.
    pub(super) fn update_tables(&mut self, id: u32) {
        let table = match &self.traffic {
            Some(traffic) => {
                let caller = &self.callers[id as usize];
                traffic.table(self.caller_groups[caller.group as usize].region)
            }
            None => self.application_table(id),
        };
        let Some(table) = table else { return };
        let caller = &mut self.callers[id as usize];
        let group = &self.caller_groups[caller.group as usize];
        caller.service.follow(table, &self.registry, &group.location, caller.client);
    }
}
