use std::time::Duration;

use fairmesh_balancer::{Exclusion, LoadReport, ReceivedReport, SCORE_BITS, ScoredEndpoint};
use fairmesh_model::{BalancingPolicy, FULL_SPEED, counted};

use crate::{EndpointTarget, Upstream};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which step it is: `route`, `action`, `key`, `shard`, `region`, `health`, `subset`, `pick`.
    pub title: &'static str,
    /// What was decided and from what.
    pub detail: String,
}

/// Sees a decision while it is made; `()` does not look, and costs nothing.
pub(crate) trait Witness: fairmesh_balancer::PickTracer {
    /// Whether anything is written down: what must be searched for is not searched for nobody.
    const LOOKS: bool;

    /// Writes a step down; whoever does not look does not compute the detail either.
    fn note(&mut self, title: &'static str, detail: impl FnOnce() -> String);
}

impl Witness for () {
    const LOOKS: bool = false;

    #[inline]
    fn note(&mut self, _title: &'static str, _detail: impl FnOnce() -> String) {}
}

/// Writes everything down.
#[derive(Debug)]
pub(crate) struct Notes<'a> {
    pub(crate) upstream: &'a Upstream,
    pub(crate) now: u64,
    pub(crate) steps: Vec<Step>,
}

impl Witness for Notes<'_> {
    const LOOKS: bool = true;

    fn note(&mut self, title: &'static str, detail: impl FnOnce() -> String) {
        self.steps.push(Step { title, detail: detail() });
    }
}

impl fairmesh_balancer::PickTracer for Notes<'_> {
    fn record_candidate(&mut self, scored: &ScoredEndpoint) {
        let ScoredEndpoint { index, weight, outstanding, exclusion, score, panic } = *scored;
        let target = self.upstream.target(index);
        let load = match self.upstream.policy().balancing.policy {
            BalancingPolicy::Score | BalancingPolicy::BoundedHash => {
                let thousandths = (score * 1000) >> SCORE_BITS;
                let sign = if thousandths < 0 { "-" } else { "" };
                format!("so a score of {sign}{}.{:03}", thousandths.abs() / 1000, thousandths.abs() % 1000)
            }
            BalancingPolicy::PeakEwma => {
                format!("expected to take {:?} with it", Duration::from_nanos((score >> 8).unsigned_abs()))
            }
            BalancingPolicy::RoundRobin => "in turn".to_owned(),
            BalancingPolicy::Random => "by chance".to_owned(),
            BalancingPolicy::LeastRequest => {
                let load = u64::from(outstanding) * 1000 * 1000 / u64::from(weight);
                format!("so a load of {}.{:03}", load / 1000, load % 1000)
            }
        };
        let weighed = weighed(target);
        let against = match exclusion {
            Exclusion::None => "",
            Exclusion::Ejected => ", penalised for recent failures",
            Exclusion::Attempted => ", tried by this call already",
            Exclusion::AttemptedAndEjected => {
                ", tried by this call already, and penalised for recent failures"
            }
        };
        let alarm = if panic { ", in a panic" } else { "" };
        let report = self.upstream.reported(index);
        let report = report.map(|report| describe(report, self.now)).unwrap_or_default();
        self.note("pick", || {
            format!(
                "considered {} at {} in {}: {outstanding} outstanding at {weighed}, {load}{against}{alarm}{report}",
                target.instance, target.address, target.location.region,
            )
        });
    }
}

/// `weight 1000`, and with the speed of a machine that is not an ordinary one, `power 1250 (weight 1000, host speed 1250)`.
fn weighed(EndpointTarget { weight, speed, power, .. }: &EndpointTarget) -> String {
    match *speed {
        FULL_SPEED => format!("weight {weight}"),
        _ => format!("power {power} (weight {weight}, host speed {speed})"),
    }
}

/// `; reports 3 requests, 12 ms ago`.
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
