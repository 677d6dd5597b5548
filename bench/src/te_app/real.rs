//! `bench/run te-app --part real`: applications as processes. The same scenarios as those of the simulator, with a
//! control plane, and an agent and a process with all servers and clients of each region.
//!
//! Every planner gets a mesh of its own, and the same calls at the same times. Its times are longer than the scenario's
//! and its rates lower, both by one factor, so that timers are exact enough and two processors are not busy: results
//! are relative.

mod fleet;

use std::{error::Error, str::FromStr, time::Duration};

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
/// Goals: mean latency relative to Waterfall's, in the worst scenario and phase, and with one region at three times its
/// load; failed calls beyond Waterfall's, as a share; relative error of what-if.
const VS_WATERFALL: f64 = 1.1;
const VS_WATERFALL_3X: f64 = 0.8;
const FAILED_BEYOND_WATERFALL: f64 = 0.001;
const WHAT_IF_ERROR: f64 = 0.15;
/// Waterfall is overloaded where its mean latency at the peak is above this many times that at usual load: calls wait in
/// growing queues, and the ratio depends on how long the phase is.
const OVERLOADED: f64 = 5.0;
/// Why there is no ratio.
const NO_RESPONSE: &str = "no call of either side had a response";
/// Scenarios, and the factor of their times. What-if predicts no parallel calls: its latency is the sum of all calls.
const SCENARIOS: [(&str, u32); 5] = [
    (include_str!("../../../scenarios/app-classes.yaml"), 2),
    (include_str!("../../../scenarios/app-faults.yaml"), 4),
    (include_str!("../../../scenarios/app-cut-point.yaml"), 20),
    (include_str!("../../../scenarios/app-boutique.yaml"), 10),
    (include_str!("../../../scenarios/app-alibaba.yaml"), 20),
];

/// A planner under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// Tables by hand, from the true model and the true rates.
    Waterfall,
    Optimizer,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Waterfall => "waterfall",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Load of clients. The usual one is that at the start of the scenario, or half of the rates that do not change. The
/// peak is that in the file.
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
        let at_start = match clients.rate_over_time.get(region).and_then(|points| points.first()) {
            Some(point) => point.times,
            None if clients.rate_over_time.is_empty() => 0.5,
            None => 1.0,
        };
        match self {
            Self::Usual => rate * at_start,
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

/// Whether one region has three times its usual calls at the peak, and all others have their usual ones.
fn has_threefold_region(scenario: &Scenario) -> bool {
    let factor = |region: &str| {
        let [usual, peak] = [Phase::Usual, Phase::Peak]
            .map(|phase| scenario.clients.iter().map(|clients| phase.rate(clients, region)).sum::<f64>());
        if usual > 0.0 { peak / usual } else { 1.0 }
    };
    let factors = scenario.topology.regions.iter().map(|region| factor(&region.name));
    let changed: Vec<f64> = factors.filter(|factor| (factor - 1.0).abs() > 0.01).collect();
    matches!(changed[..], [factor] if (factor - 3.0).abs() < 0.01)
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

    /// The mean counts calls with a response. It is infinite without any, so that a side whose calls all failed is the slowest.
    fn mean_ms(self) -> f64 {
        if self.calls == 0 { f64::INFINITY } else { self.total_ms / self.calls as f64 }
    }

    /// Mean relative to that of another side; `None` if neither has a response.
    fn relative_to(self, other: Self) -> Option<f64> {
        (self.calls > 0 || other.calls > 0).then(|| self.mean_ms() / other.mean_ms())
    }

    fn failed_share(self) -> f64 {
        self.failed as f64 / (self.calls + self.failed).max(1) as f64
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

/// Times of a phase: until calls count, and for how long they do. They are the same for all planners: their calls are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    learn: Duration,
    measure: Duration,
}

/// Figures of the clients of one planner, and the mean latency at the peak that its model predicted.
#[derive(Debug)]
struct ClientFigures {
    usual: Clocked,
    peak: Clocked,
    predicted_ms: Result<f64, String>,
    /// Services that the optimizer does not plan at the end of the peak, each with the reason.
    left_to_rings: Vec<String>,
}

/// Measures all scenarios; `quick` takes the first, with times in which the optimizer can learn little.
pub(super) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (count, [learn, measure]) = if quick { (1, [1, 1]) } else { (SCENARIOS.len(), [90, 60]) };
    let times = Times { learn: Duration::from_secs(learn), measure: Duration::from_secs(measure) };
    let mut report = Report::new("te-app");
    let mut ratios = Ratios::default();
    for (text, slower) in &SCENARIOS[..count] {
        let scenario: Scenario = serde_saphyr::from_str(text)?;
        let scenario = slowed(&scenario, *slower)?;
        let of = |contender| runtime.block_on(play(&scenario, contender, times));
        let (theirs, ours) = (of(Contender::Waterfall)?, of(Contender::Optimizer)?);
        ratios.add(&mut report, &scenario, &ours, &theirs);
    }
    ratios.report(&mut report);
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

async fn play(scenario: &Scenario, contender: Contender, times: Times) -> Result<ClientFigures, String> {
    let mut fleet = Fleet::start(scenario, contender).await?;
    let (usual, predicted_ms) = match contender {
        Contender::Optimizer => fleet.call_and_predict_peak(times).await?,
        Contender::Waterfall => {
            (fleet.call(Phase::Usual, times).await?, Err("only the optimizer predicts".to_owned()))
        }
    };
    let peak = fleet.call(Phase::Peak, times).await?;
    let left_to_rings = match contender {
        Contender::Optimizer => fleet.left_to_rings().await?,
        Contender::Waterfall => Vec::new(),
    };
    let (name, contender) = (&scenario.name, contender.name());
    eprintln!("{name}, {contender}: {:.0} ms, {:.0} ms at the peak", usual.mean_ms(), peak.mean_ms());
    Ok(ClientFigures { usual, peak, predicted_ms, left_to_rings })
}

/// Ratios of all scenarios.
#[derive(Debug, Default)]
struct Ratios {
    latencies: Vec<f64>,
    /// Those of scenarios with one region at three times its load, in which Waterfall is overloaded, and in which it is
    /// not.
    threefold_overloaded: Vec<f64>,
    threefold_steady: Vec<f64>,
    /// Share of failed calls less Waterfall's.
    failed: Vec<f64>,
    /// Services that the optimizer did not plan.
    left_to_rings: Vec<String>,
    /// Relative errors of predictions, or why there is none.
    errors: Vec<Result<f64, String>>,
}

impl Ratios {
    fn add(
        &mut self,
        report: &mut Report,
        scenario: &Scenario,
        ours: &ClientFigures,
        theirs: &ClientFigures,
    ) {
        let name = scenario.name.replace('-', "_");
        let phases = [(Phase::Usual, ours.usual, theirs.usual), (Phase::Peak, ours.peak, theirs.peak)];
        for (phase, ours, theirs) in phases {
            let one = |name: &str, of: Clocked| {
                format!("{name} {:.1} ms ({} calls, {} failed)", of.mean_ms(), of.calls, of.failed)
            };
            let note = format!("{}, {}", one("optimizer", ours), one("waterfall", theirs));
            let (figure, ratio) = (format!("real_{name}_{}", phase.name()), ours.relative_to(theirs));
            match ratio {
                Some(ratio) => report.figure(figure, ratio, None, note),
                None => report.unmeasured(figure, NO_RESPONSE),
            }
            self.latencies.extend(ratio);
            self.failed.push(ours.failed_share() - theirs.failed_share());
        }
        if has_threefold_region(scenario) {
            let is_overloaded = theirs.peak.mean_ms() > OVERLOADED * theirs.usual.mean_ms();
            let list =
                if is_overloaded { &mut self.threefold_overloaded } else { &mut self.threefold_steady };
            list.extend(ours.peak.relative_to(theirs.peak));
        }
        self.left_to_rings.extend(ours.left_to_rings.iter().cloned());
        self.add_prediction(report, scenario, ours);
    }

    fn add_prediction(&mut self, report: &mut Report, scenario: &Scenario, ours: &ClientFigures) {
        let is_parallel = scenario.operations.iter().flat_map(|one| &one.calls).any(|stage| stage.len() > 1);
        if is_parallel {
            return;
        }
        let measured = ours.peak.mean_ms();
        let error = ours.predicted_ms.clone().map(|predicted| (predicted / measured - 1.0).abs());
        if let (Ok(predicted), Ok(error)) = (&ours.predicted_ms, &error) {
            let note = format!("{predicted:.1} ms predicted, {measured:.1} ms measured");
            report.figure(format!("real_{}_what_if", scenario.name.replace('-', "_")), *error, None, note);
        }
        self.errors.push(error);
    }

    fn report(self, report: &mut Report) {
        let mut worst = |name, ratios: &[f64], most, note| match ratios.iter().copied().max_by(f64::total_cmp)
        {
            Some(worst) => report.figure(name, worst, Some(most), note),
            None => report.unmeasured(name, NO_RESPONSE),
        };
        let note = "the worst scenario and phase; inf if all calls failed";
        worst("real_mean_vs_waterfall", &self.latencies, VS_WATERFALL, note);
        let note = "share of failed calls less Waterfall's; the worst scenario and phase";
        worst("real_failed_vs_waterfall", &self.failed, FAILED_BEYOND_WATERFALL, note);
        let left =
            self.left_to_rings.first().map_or("all services are planned by the optimizer", String::as_str);
        report.figure("real_left_to_rings", self.left_to_rings.len() as f64, Some(0.0), left);
        let (steady, overloaded) = (&self.threefold_steady, &self.threefold_overloaded);
        let all: Vec<f64> = steady.iter().chain(overloaded).copied().collect();
        let Some(mean) = geometric_mean(&all) else {
            return self.report_prediction(report);
        };
        let note = format!(
            "geometric mean of {} scenarios with a region at three times its load; Waterfall is overloaded in {}",
            all.len(),
            overloaded.len()
        );
        report.figure("real_mean_vs_waterfall_3x", mean, Some(VS_WATERFALL_3X), note);
        if let Some(mean) = geometric_mean(steady) {
            let note = "the same of scenarios in which Waterfall is not overloaded";
            report.figure("real_mean_vs_waterfall_3x_steady", mean, None, note);
        }
        self.report_prediction(report);
    }

    fn report_prediction(self, report: &mut Report) {
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

/// None of no ratios.
fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
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
        let scenario: Scenario = serde_saphyr::from_str(SCENARIOS[3].0).unwrap();
        let rate = |phase: Phase| phase.of(&scenario).clients[0].rates["or"];
        assert!((rate(Phase::Usual) - 60.0).abs() < 0.01, "{}", rate(Phase::Usual));
        assert!((rate(Phase::Peak) - 180.0).abs() < 1e-9, "{}", rate(Phase::Peak));
    }

    #[test]
    fn threefold_scenarios_are_boutique_and_alibaba() {
        let scenarios = SCENARIOS.map(|(text, _)| serde_saphyr::from_str::<Scenario>(text).unwrap());
        let threefold = scenarios.iter().filter(|scenario| has_threefold_region(scenario));
        let names: Vec<&str> = threefold.map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names, ["app-boutique", "app-alibaba"]);
    }

    #[test]
    fn side_without_successful_calls_misses_its_goal() {
        let all_failed = Clocked { calls: 0, failed: 10, total_ms: 0.0 };
        let served = Clocked { calls: 10, failed: 0, total_ms: 100.0 };
        let figures = |of| ClientFigures {
            usual: of,
            peak: of,
            predicted_ms: Err(String::new()),
            left_to_rings: Vec::new(),
        };
        let scenario: Scenario = serde_saphyr::from_str(SCENARIOS[0].0).unwrap();
        let worst_of = |sides: &[(Clocked, Clocked)]| {
            let (mut report, mut ratios) = (Report::new("te-app"), Ratios::default());
            for (ours, theirs) in sides {
                ratios.add(&mut report, &scenario, &figures(*ours), &figures(*theirs));
            }
            ratios.report(&mut report);
            let table = report.to_string();
            let line = table.lines().find(|line| line.starts_with("real_mean_vs_waterfall ")).unwrap();
            line.split_whitespace().skip(1).take(4).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(worst_of(&[(served, served)]), "1.000 ≤ 1.1 yes");
        assert_eq!(worst_of(&[(served, served), (all_failed, served)]), "inf ≤ 1.1 no");
        // Where Waterfall has no response, and where neither side has, another scenario is the worst.
        let others = [(served, served), (served, all_failed), (all_failed, all_failed)];
        assert_eq!(worst_of(&others), "1.000 ≤ 1.1 yes");
        assert_eq!(worst_of(&[(all_failed, all_failed)]), "not measured no call");
    }
}
