use std::time::Duration;

use fairmesh_balancer::{Handicap, LoadReport, Reported, Standing};

use fairmesh_model::FULL_SPEED;

use crate::{EndpointTarget, Upstream};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which step it is: `route`, `shard`, `region`, `health`, `subset`, `pick`.
    pub title: &'static str,
    /// What was decided and from what.
    pub detail: String,
}

/// Sees a decision while it is made; `()` does not look, and costs nothing.
pub(crate) trait Witness: fairmesh_balancer::Witness {
    /// Writes a step down; whoever does not look does not compute the detail either.
    fn note(&mut self, title: &'static str, detail: impl FnOnce() -> String);
}

impl Witness for () {
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
    fn note(&mut self, title: &'static str, detail: impl FnOnce() -> String) {
        self.steps.push(Step { title, detail: detail() });
    }
}

impl fairmesh_balancer::Witness for Notes<'_> {
    fn considered(&mut self, standing: &Standing) {
        let Standing { index, weight, outstanding, handicap } = *standing;
        let target = self.upstream.target(index);
        let weighed = weighed(target);
        let load = u64::from(outstanding) * 1000 * 1000 / u64::from(weight);
        let against = match handicap {
            Handicap::None => "",
            Handicap::Penalised => ", penalised for recent failures",
            Handicap::Tried => ", tried by this call already",
            Handicap::TriedAndPenalised => ", tried by this call already, and penalised for recent failures",
        };
        let report = self.upstream.reported(index);
        let report = report.map(|report| describe(report, self.now)).unwrap_or_default();
        self.note("pick", || {
            format!(
                "considered {} at {} in {}: {outstanding} outstanding at {weighed}, so a load of {}.{:03}{against}{report}",
                target.instance, target.address, target.location.region, load / 1000, load % 1000,
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
fn describe(Reported { load: LoadReport { requests, cpu }, at }: Reported, now: u64) -> String {
    let requests = requests.map(|requests| format!("{requests} requests"));
    let cpu = cpu.map(|cpu| format!("{}.{} % CPU", cpu / 10, cpu % 10));
    let load: Vec<_> = requests.into_iter().chain(cpu).collect();
    let ago = Duration::from_nanos(now.saturating_sub(at));
    let ago = match ago.as_secs() {
        0 => format!("{} ms", ago.as_millis()),
        seconds => format!("{seconds} s"),
    };
    format!("; reports {}, {ago} ago", load.join(" and "))
}
