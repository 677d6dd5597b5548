use serde::{Deserialize, Serialize};

use fairmesh_model::Invalid;

use super::{Scenario, SimTime};
use crate::{
    report::{Latency, Report},
    traffic::TrafficReport,
};

/// Expectations on the result of a scenario; all are optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Upper bound of the coefficient of variation of utilisation.
    pub cv_below: Option<f64>,
    /// Upper bound of p99 utilisation, from 0 to 1.
    pub p99_utilisation_below: Option<f64>,
    /// Upper bound of the share of failed calls.
    pub errors_below: Option<f64>,
    /// Upper bound of p99 latency.
    pub p99_latency_below: Option<SimTime>,
    /// Upper bound of p99 latency after the first event, as a multiple of p99 latency before.
    pub p99_latency_after_event_below: Option<f64>,
    /// Upper bound of the multiple of its fair share that any server gets in any second after the first event.
    pub worst_second_below: Option<f64>,
    /// Maximum time in which recovered servers must get four fifths of their fair share.
    pub recovered_within: Option<SimTime>,
    /// Lower bound of the number of calls sent to a last resort.
    pub last_resort_above: Option<u64>,
    /// Upper bound of the utilisation of every region in every interval, from 0 to 1.
    pub region_load_below: Option<f64>,
    /// Lower bound of the greatest utilisation of a region in any interval.
    pub region_load_above: Option<f64>,
    /// Maximum number of consecutive planning rounds for which any region may be above its first threshold.
    pub rounds_above_threshold: Option<u32>,
    /// Lower bound of the share of calls in the last interval that stay in their region.
    pub local_at_end_above: Option<f64>,
    /// Upper bound of the share of calls that tables drop in any interval, by class.
    pub dropped_below: Option<Vec<f64>>,
    /// Lower bound of the number of rounds in which the planner refuses its input.
    pub refused_above: Option<u32>,
    /// Upper bound of the number of rounds that change a table.
    pub changed_below: Option<u32>,
    /// Upper bound of the multiple of its fair share that this group of servers gets after the first event.
    pub share_below: Option<GroupShare>,
    /// Lower bound of the multiple of its fair share that this group of servers gets after the first event.
    pub share_above: Option<GroupShare>,
}

/// The share of a group of servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupShare {
    /// The group.
    pub group: String,
    /// The multiple of its fair share.
    pub times: f64,
}

impl Expect {
    /// The expectations that were not met, as messages.
    pub(crate) fn missed(&self, report: &Report) -> Vec<String> {
        let mut missed = Vec::new();
        let mut at_most = |what: &str, found: Option<f64>, bound: Option<f64>| {
            let Some(bound) = bound else { return };
            match found {
                Some(found) if found < bound => {}
                Some(found) => missed.push(format!("{what} is {found:.4} and should be below {bound}")),
                None => missed.push(format!("{what} should be below {bound} and nothing was measured")),
            }
        };
        let p99 = |latency: &Option<Latency>| latency.map(|latency| latency.p99);
        let all = p99(&report.latency_after_event).into_iter().chain(p99(&report.latency)).reduce(f64::max);
        let ratio =
            p99(&report.latency_after_event).zip(p99(&report.latency)).map(|(after, before)| after / before);
        at_most("the variation of utilisation", report.cv, self.cv_below);
        // Without a complete window the value is 0, which would pass.
        let p99_utilisation = (!report.windows.is_empty()).then_some(report.p99_utilisation);
        at_most("the p99 utilisation", p99_utilisation, self.p99_utilisation_below);
        at_most("the share of failed calls", Some(report.failed), self.errors_below);
        let bound = self.p99_latency_below.map(|bound| bound.as_seconds() * 1e3);
        at_most("the p99 latency in milliseconds", all, bound);
        at_most(
            "the p99 latency after the first event, as a multiple of that before,",
            ratio,
            self.p99_latency_after_event_below,
        );
        let worst = report.worst_second.map(|worst| worst.times);
        at_most("the greatest multiple of a fair share in a second", worst, self.worst_second_below);
        let slowest = report.recoveries.iter().map(|one| one.took.unwrap_or(f64::INFINITY)).reduce(f64::max);
        at_most("the slowest recovery in seconds", slowest, self.recovered_within.map(SimTime::as_seconds));
        if let Some(wanted) = &self.share_below {
            at_most(&format!("the share of {}", wanted.group), share_of(wanted, report), Some(wanted.times));
        }
        missed.extend(self.share_above.as_ref().and_then(|wanted| missed_share(wanted, report)));
        missed.extend(self.missed_in_traffic(report.traffic.as_ref()));
        if let Some(least) = self.last_resort_above.filter(|least| report.last_resort <= *least) {
            let found = report.last_resort;
            missed.push(format!("the number of calls of last resort is {found} and should be above {least}"));
        }
        missed
    }

    fn missed_in_traffic(&self, traffic: Option<&TrafficReport>) -> Vec<String> {
        let mut missed = Vec::new();
        let mut check = |what: &str, found: Option<f64>, is_met: &dyn Fn(f64) -> bool, bound: String| {
            if !found.is_some_and(is_met) {
                let found = found.map_or_else(|| "not measured".to_owned(), |found| format!("{found:.4}"));
                missed.push(format!("{what} is {found} and should be {bound}"));
            }
        };
        let figure = |of: fn(&TrafficReport) -> f64| traffic.map(of);
        let greatest = figure(|traffic| traffic.greatest_load);
        if let Some(most) = self.region_load_below {
            check("the greatest load of a region", greatest, &|found| found < most, format!("below {most}"));
        }
        if let Some(least) = self.region_load_above {
            check(
                "the greatest load of a region",
                greatest,
                &|found| found > least,
                format!("above {least}"),
            );
        }
        if let Some(most) = self.rounds_above_threshold {
            let rounds = figure(|traffic| f64::from(traffic.longest_above));
            let what = "the number of consecutive rounds above the first threshold";
            check(what, rounds, &|found| found <= f64::from(most), format!("at most {most}"));
        }
        if let Some(least) = self.local_at_end_above {
            let local = figure(|traffic| traffic.local_at_end);
            check("the local share at the end", local, &|found| found > least, format!("above {least}"));
        }
        for (class, most) in self.dropped_below.iter().flatten().enumerate() {
            let dropped = traffic.and_then(|traffic| traffic.most_dropped.get(class).copied());
            let what = format!("the dropped share of class {class}");
            check(&what, dropped, &|found| found < *most, format!("below {most}"));
        }
        if let Some(least) = self.refused_above {
            let refused = figure(|traffic| f64::from(traffic.refused));
            check("the number of refusals", refused, &|n| n > f64::from(least), format!("above {least}"));
        }
        if let Some(most) = self.changed_below {
            let changed = figure(|traffic| f64::from(traffic.changed));
            check(
                "the number of rounds with changes",
                changed,
                &|n| n < f64::from(most),
                format!("below {most}"),
            );
        }
        missed
    }

    /// Checks that the expectations can be measured.
    pub(super) fn validate(&self, scenario: &Scenario) -> Result<(), Invalid> {
        for (field, share) in [("shareBelow", &self.share_below), ("shareAbove", &self.share_above)] {
            let Some(share) = share else { continue };
            if !scenario.servers.iter().any(|servers| servers.name == share.group) {
                let names: Vec<_> = scenario.servers.iter().map(|servers| servers.name.as_str()).collect();
                let problem = format!("there is no group of servers '{}'", share.group);
                let hint = format!("write one of {}", names.join(", "));
                return Err(Invalid::new(format!("{field}.group"), problem, hint));
            }
            if scenario.events.is_empty() {
                let hint = "add one to 'events', at the time from which shares are to count";
                return Err(Invalid::new(
                    field,
                    "shares count from the first event, and there is none",
                    hint,
                ));
            }
        }
        Ok(())
    }
}

/// The share of a group of servers, as a multiple of its fair share.
fn share_of(wanted: &GroupShare, report: &Report) -> Option<f64> {
    report.groups.iter().find(|group| group.name == wanted.group)?.share
}

/// Explains why a share is not above its bound.
fn missed_share(wanted: &GroupShare, report: &Report) -> Option<String> {
    let what = format!("the share of {}", wanted.group);
    match share_of(wanted, report) {
        Some(found) if found > wanted.times => None,
        Some(found) => Some(format!("{what} is {found:.4} and should be above {}", wanted.times)),
        None => Some(format!("{what} should be above {} and nothing was measured", wanted.times)),
    }
}
