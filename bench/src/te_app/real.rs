//! `bench/run te-app --part real`: applications as processes. The same scenarios as those of the simulator, with a
//! control plane, and an agent and a process with all servers and clients of each region.
//!
//! Every planner gets a mesh of its own, and the same calls at the same times. Its times are longer than the scenario's
//! and its rates lower, both by one factor, so that timers are exact enough and two processors are not busy: results
//! are relative.

mod fleet;

use std::{collections::BTreeMap, error::Error, str::FromStr, time::Duration};

use fairmesh_model::spec::{read_duration, write_duration};
use fairmesh_sim::{
    application::{Clients, Scenario},
    scenario::SimTime,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::report::Report;
use fleet::Fleet;

/// File with the application, for its processes.
pub(crate) const APPLICATION: &str = "application.json";
/// Goals: mean latency relative to Waterfall's, in the worst scenario and phase, and at the peak; relative error of
/// what-if.
const VS_WATERFALL: f64 = 1.1;
const VS_WATERFALL_PEAK: f64 = 0.8;
const WHAT_IF_ERROR: f64 = 0.15;
/// Scenarios, and the factor of their times. What-if predicts no parallel calls: its latency is the sum of all calls.
const SCENARIOS: [(&str, u32); 3] = [
    (include_str!("../../../scenarios/app-classes.yaml"), 2),
    (include_str!("../../../scenarios/app-faults.yaml"), 4),
    (include_str!("../../../scenarios/app-boutique.yaml"), 10),
];

/// A planner under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// Tables by hand, from the true model and the true rates.
    Waterfall,
    Rings,
    Optimizer,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Waterfall => "waterfall",
            Self::Rings => "rings",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Load of clients: that at the start of the scenario, or that in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Usual,
    Peak,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Peak => "peak",
        }
    }

    /// Calls per second of clients in a region.
    pub(crate) fn rate(self, clients: &Clients, region: &str) -> f64 {
        let rate = clients.rates.get(region).copied().unwrap_or_default();
        let first = clients.rate_over_time.get(region).and_then(|points| points.first());
        match self {
            Self::Usual => rate * first.map_or(1.0, |point| point.times),
            Self::Peak => rate,
        }
    }

    /// The scenario with constant rates.
    fn of(self, scenario: &Scenario) -> Scenario {
        let mut constant = scenario.clone();
        for clients in &mut constant.clients {
            let rate = |region: &String| (region.clone(), self.rate(clients, region));
            clients.rates = clients.rates.keys().map(rate).collect();
            clients.rate_over_time.clear();
        }
        constant
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [Self::Usual, Self::Peak].into_iter().find(|phase| phase.name() == text);
        named.ok_or_else(|| format!("there is no phase '{text}'"))
    }
}

/// Calls that were clocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Clocked {
    /// Calls with a response.
    calls: u64,
    failed: u64,
    /// Sum of the milliseconds of calls with a response.
    total_ms: f64,
}

impl Clocked {
    /// A call that was due at `due` and has ended now. It counts if it was due after `from`.
    pub(crate) fn call(due: Instant, ended: Result<(), String>, from: Instant) -> Self {
        match ended {
            _ if due < from => Self::default(),
            Ok(()) => Self { calls: 1, failed: 0, total_ms: due.elapsed().as_secs_f64() * 1e3 },
            Err(_) => Self { failed: 1, ..Self::default() },
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            failed: self.failed + other.failed,
            total_ms: self.total_ms + other.total_ms,
        }
    }

    fn mean_ms(self) -> f64 {
        self.total_ms / self.calls.max(1) as f64
    }
}

/// Name of a service in the mesh.
pub(crate) fn service_name(service: &str) -> String {
    format!("app/{service}")
}

/// File name of the socket of a region's agent.
pub(crate) fn socket_of(region: &str) -> String {
    format!("{region}.sock")
}

/// Times of a phase: until calls count, and for how long they do.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// With a planner that learns from reports.
    learn: Duration,
    /// With tables that are there from the start.
    settle: Duration,
    measure: Duration,
}

/// What the clients of one planner saw, and what its model predicted of the peak.
#[derive(Debug)]
struct Seen {
    usual: Clocked,
    peak: Clocked,
    predicted_ms: Result<f64, String>,
}

/// Measures all scenarios; `quick` takes the first, with times in which the optimizer can learn little.
pub(super) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (count, contenders, times) = if quick {
        let second = Duration::from_secs(1);
        (
            1,
            vec![Contender::Waterfall, Contender::Optimizer],
            Times { learn: second, settle: second, measure: second },
        )
    } else {
        let [learn, settle, measure] = [90, 10, 90].map(Duration::from_secs);
        let all = vec![Contender::Waterfall, Contender::Rings, Contender::Optimizer];
        (SCENARIOS.len(), all, Times { learn, settle, measure })
    };
    let mut report = Report::new("te-app");
    let mut sums = Sums::default();
    for (text, slower) in &SCENARIOS[..count] {
        let scenario: Scenario = serde_saphyr::from_str(text)?;
        let scenario = slowed(&scenario, *slower)?;
        let mut seen = BTreeMap::new();
        for contender in &contenders {
            seen.insert(contender.name(), runtime.block_on(measure(&scenario, *contender, times))?);
        }
        sums.add(&mut report, &scenario, &seen);
    }
    sums.report(&mut report);
    Ok(report)
}

/// All times multiplied by `slower`, and all rates divided by it. Bytes are free, since only latency is compared.
fn slowed(scenario: &Scenario, slower: u32) -> Result<Scenario, Box<dyn Error>> {
    let mut slow = Scenario { variants: Vec::new(), ..scenario.clone() };
    let longer = |text: &mut String| -> Result<(), Box<dyn Error>> {
        *text = write_duration(read_duration(text)? * slower);
        Ok(())
    };
    slow.topology.egress = None;
    for trip in &mut slow.topology.round_trips {
        longer(&mut trip.rtt)?;
    }
    for ring in slow.rings.iter_mut().filter(|ring| ring.within.starts_with(|c: char| c.is_ascii_digit())) {
        longer(&mut ring.within)?;
    }
    for operation in &mut slow.operations {
        for time in [&mut operation.cpu, &mut operation.wait] {
            *time = SimTime::micros(time.nanos() / 1_000 * u64::from(slower));
        }
    }
    for clients in &mut slow.clients {
        clients.rates.values_mut().for_each(|rate| *rate /= f64::from(slower));
    }
    Ok(slow)
}

async fn measure(scenario: &Scenario, contender: Contender, times: Times) -> Result<Seen, String> {
    let learn = if contender == Contender::Waterfall { times.settle } else { times.learn };
    let mut fleet = Fleet::start(scenario, contender).await?;
    let usual = fleet.call(Phase::Usual, [learn, times.measure]).await?;
    let predicted_ms = match contender {
        Contender::Optimizer => fleet.predict_peak().await,
        _ => Err("only the optimizer predicts".to_owned()),
    };
    let peak = fleet.call(Phase::Peak, [learn, times.measure]).await?;
    let (name, contender) = (&scenario.name, contender.name());
    eprintln!("{name}, {contender}: {:.0} ms, {:.0} ms at the peak", usual.mean_ms(), peak.mean_ms());
    Ok(Seen { usual, peak, predicted_ms })
}

/// Ratios of all scenarios.
#[derive(Debug, Default)]
struct Sums {
    ratios: Vec<f64>,
    peaks: Vec<f64>,
    /// Relative errors of predictions, or why there is none.
    errors: Vec<Result<f64, String>>,
}

impl Sums {
    fn add(&mut self, report: &mut Report, scenario: &Scenario, seen: &BTreeMap<&str, Seen>) {
        let (Some(ours), Some(theirs)) = (seen.get("optimizer"), seen.get("waterfall")) else { return };
        let name = scenario.name.replace('-', "_");
        for phase in [Phase::Usual, Phase::Peak] {
            let of = |seen: &Seen| if phase == Phase::Usual { seen.usual } else { seen.peak };
            let ratio = of(ours).mean_ms() / of(theirs).mean_ms();
            let means = seen.iter().map(|(name, seen)| {
                let one = of(seen);
                format!("{name} {:.1} ms ({} calls, {} failed)", one.mean_ms(), one.calls, one.failed)
            });
            let note = means.collect::<Vec<_>>().join(", ");
            report.figure(format!("real_{name}_{}", phase.name()), ratio, None, note);
            self.ratios.push(ratio);
            if phase == Phase::Peak {
                self.peaks.push(ratio);
            }
        }
        let is_parallel = scenario.operations.iter().flat_map(|one| &one.calls).any(|stage| stage.len() > 1);
        if is_parallel {
            return;
        }
        let error = ours.predicted_ms.clone().map(|predicted| (predicted / ours.peak.mean_ms() - 1.0).abs());
        if let (Ok(predicted), Ok(error)) = (&ours.predicted_ms, &error) {
            let note = format!("{predicted:.1} ms predicted, {:.1} ms measured", ours.peak.mean_ms());
            report.figure(format!("real_{name}_what_if"), *error, None, note);
        }
        self.errors.push(error);
    }

    fn report(self, report: &mut Report) {
        let worst = self.ratios.iter().copied().fold(0.0, f64::max);
        report.figure("real_mean_vs_waterfall", worst, Some(VS_WATERFALL), "the worst scenario and phase");
        let mean = self.peaks.iter().map(|ratio| ratio.ln()).sum::<f64>() / self.peaks.len().max(1) as f64;
        let note = format!("geometric mean of {} scenarios at their peak", self.peaks.len());
        report.figure("real_mean_vs_waterfall_3x", mean.exp(), Some(VS_WATERFALL_PEAK), note);
        match self.errors.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(errors) => {
                let worst = errors.into_iter().fold(0.0, f64::max);
                let note = "latency at the peak, predicted before it, against measured; the worst";
                report.figure("real_what_if_error", worst, Some(WHAT_IF_ERROR), note);
            }
            Err(why) => report.unmeasured("real_what_if_error", why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowed_scenario_has_same_load_and_longer_times() {
        for (text, slower) in SCENARIOS {
            let scenario: Scenario = serde_saphyr::from_str(text).unwrap();
            let slow = slowed(&scenario, slower).unwrap();
            slow.validate().unwrap();
            let load = |one: &Scenario| {
                let clients = Phase::Peak.of(one).clients;
                let rates = clients.iter().flat_map(|clients| clients.rates.values());
                rates.sum::<f64>() * one.operations[0].cpu.as_seconds()
            };
            assert!((load(&slow) / load(&scenario) - 1.0).abs() < 1e-6, "{}", scenario.name);
            assert_eq!(
                slow.operations[0].cpu.nanos(),
                scenario.operations[0].cpu.nanos() * u64::from(slower)
            );
        }
    }

    #[test]
    fn usual_phase_has_rates_of_scenario_start() {
        let scenario: Scenario = serde_saphyr::from_str(SCENARIOS[2].0).unwrap();
        let rate = |phase: Phase| phase.of(&scenario).clients[0].rates["or"];
        assert!((rate(Phase::Usual) - 60.0).abs() < 0.01, "{}", rate(Phase::Usual));
        assert!((rate(Phase::Peak) - 180.0).abs() < 1e-9, "{}", rate(Phase::Peak));
    }
}
