use std::time::Duration;

use fairmesh_balancer::{Exclusion, LoadReport, ReceivedReport, SCORE_BITS, ScoredEndpoint};
use fairmesh_model::{BalancingPolicy, FULL_SPEED, counted};

use crate::{EndpointTarget, ServiceTable};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Kind of the step: `route`, `action`, `key`, `region`, `health`, `table`, `draw`, `shard`, `subset` or `pick`.
    pub title: &'static str,
    /// The decision, with its inputs.
    pub detail: String,
}

/// Observes a decision while it is made. `()` observes nothing and costs nothing.
pub(crate) trait DecisionTracer: fairmesh_balancer::PickTracer {
    /// Whether steps are recorded. If not, details are not computed.
    const ENABLED: bool;

    /// Records a step. The detail is not computed if steps are not recorded.
    fn record_step(&mut self, title: &'static str, detail: impl FnOnce() -> String);
}

impl DecisionTracer for () {
    const ENABLED: bool = false;

    #[inline]
    fn record_step(&mut self, _title: &'static str, _detail: impl FnOnce() -> String) {}
}

/// Records every step.
#[derive(Debug)]
pub(crate) struct StepRecorder<'a> {
    pub(crate) table: &'a ServiceTable,
    pub(crate) now: u64,
    pub(crate) steps: Vec<Step>,
}

impl DecisionTracer for StepRecorder<'_> {
    const ENABLED: bool = true;

    fn record_step(&mut self, title: &'static str, detail: impl FnOnce() -> String) {
        self.steps.push(Step { title, detail: detail() });
    }
}

impl fairmesh_balancer::PickTracer for StepRecorder<'_> {
    fn record_candidate(&mut self, scored: &ScoredEndpoint) {
        let ScoredEndpoint { index, weight, outstanding, exclusion, score, panic } = *scored;
        let target = self.table.target(index);
        let load = match self.table.policy().balancing.policy {
            BalancingPolicy::Score | BalancingPolicy::BoundedHash => {
                let thousandths = (score * 1000) >> SCORE_BITS;
                let sign = if thousandths < 0 { "-" } else { "" };
                format!("score {sign}{}.{:03}", thousandths.abs() / 1000, thousandths.abs() % 1000)
            }
            BalancingPolicy::PeakEwma => {
                format!("expected latency {:?}", Duration::from_nanos((score >> 8).unsigned_abs()))
            }
            BalancingPolicy::RoundRobin => "round robin".to_owned(),
            BalancingPolicy::Random => "random".to_owned(),
            BalancingPolicy::LeastRequest => {
                let load = u64::from(outstanding) * 1000 * 1000 / u64::from(weight);
                format!("load {}.{:03}", load / 1000, load % 1000)
            }
        };
        let weight_text = weight_text(target);
        let against = match exclusion {
            Exclusion::None => "",
            Exclusion::Ejected => ", ejected for recent failures",
            Exclusion::Attempted => ", already attempted by this call",
            Exclusion::AttemptedAndEjected => {
                ", already attempted by this call, and ejected for recent failures"
            }
        };
        let alarm = if panic { ", in panic mode" } else { "" };
        let report = self.table.last_report(index);
        let report = report.map(|report| describe(report, self.now)).unwrap_or_default();
        self.record_step("pick", || {
            format!(
                "considered {} at {} in {}: {outstanding} outstanding at {weight_text}, {load}{against}{alarm}{report}",
                target.instance, target.address, target.location.region,
            )
        });
    }
}

/// Describes a weight: `weight 1000`; or `power 1250 (weight 1000, host speed 1250)` if the machine's speed is not
/// ordinary.
fn weight_text(EndpointTarget { weight, speed, power, .. }: &EndpointTarget) -> String {
    match *speed {
        FULL_SPEED => format!("weight {weight}"),
        _ => format!("power {power} (weight {weight}, host speed {speed})"),
    }
}

/// Describes a report: `; reports 3 requests, 12 ms ago`.
fn describe(ReceivedReport { load, at }: ReceivedReport, now: u64) -> String {
    let LoadReport { requests, streams, cpu, metric } = load;
    let requests = requests.map(|requests| counted(requests as usize, "request").to_string());
    let streams = streams.map(|streams| counted(streams as usize, "stream").to_string());
    let metric = metric.map(|metric| format!("{}.{:03} of its metric", metric / 1000, metric % 1000));
    let cpu = cpu.map(|cpu| format!("{}.{} % CPU", cpu / 10, cpu % 10));
    let load: Vec<_> = requests.into_iter().chain(streams).chain(cpu).chain(metric).collect();
    let ago = Duration::from_nanos(now.saturating_sub(at));
    let ago = match ago.as_secs() {
        0 => format!("{} ms", ago.as_millis()),
        seconds => format!("{seconds} s"),
    };
    format!("; reports {}, {ago} ago", load.join(" and "))
}
