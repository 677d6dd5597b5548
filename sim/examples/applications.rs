//! Simulates applications and all their variants with each planner, prints client latency and cost, and writes figures
//! and pictures: `applications FOLDER FILE…`. The pictures in `docs/optimizer` come from `applications docs/optimizer
//! scenarios/app-*.yaml`.

use std::{error::Error, fs, path::Path};

use fairmesh_sim::{
    application::{Measured, Planner, Scenario, capacity_factor, play},
    plot,
};
use serde_json::json;

/// The application in the picture of latency over load, and the loads of its first region, relative to the load in the
/// file.
const OVER_LOAD: &str = "app-boutique";
const LOADS: [f64; 7] = [0.333, 0.5, 0.667, 0.833, 0.917, 1.0, 1.083];
/// The variant in the picture of recovery.
const RECOVERY: &str = "app-boutique-capacity-cut";

/// Results of all planners for one scenario.
type Played = (Scenario, Vec<Measured>);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: applications FOLDER FILE…")?;
    draw(Path::new(&folder), &arguments.collect::<Vec<_>>())
}

/// Writes the figures and pictures of the applications in these files.
pub(crate) fn draw(folder: &Path, files: &[String]) -> Result<(), Box<dyn Error>> {
    let mut all: Vec<Played> = Vec::new();
    for path in files {
        let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
        scenario.validate()?;
        for variant in scenario.variants() {
            let measured = play_all(&variant, &Planner::ALL)?;
            print(&variant, &measured);
            all.push((variant, measured));
        }
    }
    fs::create_dir_all(folder)?;
    fs::write(folder.join("figures.json"), format!("{:#}\n", figures(&all)))?;
    fs::write(folder.join("egress.svg"), egress(&all))?;
    if let Some((scenario, measured)) = all.iter().find(|(scenario, _)| scenario.name == RECOVERY) {
        fs::write(folder.join("recovery.svg"), plot::latency_over_time(&scenario.name, measured))?;
    }
    if let Some((scenario, _)) = all.iter().find(|(scenario, _)| scenario.name == OVER_LOAD) {
        fs::write(folder.join("latency-over-load.svg"), over_load(scenario)?)?;
    }
    Ok(())
}

fn play_all(scenario: &Scenario, planners: &[Planner]) -> Result<Vec<Measured>, Box<dyn Error>> {
    let played = planners.iter().map(|planner| play(scenario, *planner, |_| {}));
    Ok(played.collect::<Result<_, _>>()?)
}

fn print(scenario: &Scenario, measured: &[Measured]) {
    println!("{}", scenario.name);
    for one in measured {
        println!(
            "  {:15} {:8.1} ms (predicted {:8.1}, p50 {:8.1}, p99 {:8.1}), $ {:9.4} an hour, load {:.2}, {} of {} not served, {} changes",
            one.planner,
            one.mean_ms,
            one.predicted_ms,
            one.p50_ms,
            one.p99_ms,
            one.egress * 3_600.0,
            one.greatest_load,
            one.failed + one.dropped,
            one.calls,
            one.tables.len()
        );
        let windows: Vec<String> =
            one.windows.iter().map(|window| format!("{:.0}", window.mean_ms)).collect();
        println!("      {}", windows.join(" "));
    }
}

fn figures(all: &[Played]) -> serde_json::Value {
    let planner = |one: &Measured| {
        json!({
            "planner": one.planner,
            "meanMs": rounded(one.mean_ms),
            "predictedMs": rounded(one.predicted_ms),
            "p50Ms": rounded(one.p50_ms),
            "p99Ms": rounded(one.p99_ms),
            "dollarsPerHour": rounded(one.egress * 3_600.0),
            "greatestLoad": rounded(one.greatest_load),
            "calls": one.calls,
            "notServed": one.failed + one.dropped,
        })
    };
    let scenario = |(scenario, measured): &Played| {
        json!({
            "scenario": scenario.name,
            "planners": measured.iter().map(planner).collect::<Vec<_>>(),
            "capacityFactor": capacity_factor(scenario, false).map(rounded),
        })
    };
    all.iter().map(scenario).collect()
}

/// Four digits, and no negative zero, which is the sum of nothing.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4 + 0.0
}

/// Egress of partly replicated applications, relative to the maximum of each.
fn egress(all: &[Played]) -> String {
    let is_partial = |scenario: &Scenario| {
        let regions = scenario.topology.regions.len();
        scenario.services.iter().any(|service| service.cores.len() < regions)
    };
    let groups = all.iter().filter(|(scenario, _)| is_partial(scenario)).map(|(scenario, measured)| {
        let most = measured.iter().map(|one| one.egress).fold(f64::MIN_POSITIVE, f64::max);
        (scenario.name.clone(), measured.iter().map(|one| one.egress / most).collect())
    });
    let planners: Vec<String> = Planner::ALL.iter().map(|planner| planner.name().to_owned()).collect();
    let groups: Vec<(String, Vec<f64>)> = groups.collect();
    plot::bars("Egress under partial replication", "as a part of the dearest planner's", &planners, &groups)
}

fn over_load(scenario: &Scenario) -> Result<String, Box<dyn Error>> {
    let planners = [Planner::Rings, Planner::Waterfall, Planner::WaterfallBest, Planner::Optimizer];
    let region = scenario.topology.regions[0].name.clone();
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        planners.iter().map(|planner| (planner.name().to_owned(), Vec::new())).collect();
    for load in LOADS {
        let mut changed = scenario.clone();
        for clients in &mut changed.clients {
            clients.rates.entry(region.clone()).and_modify(|rate| *rate *= load);
        }
        for (line, one) in lines.iter_mut().zip(play_all(&changed, &planners)?) {
            line.1.push((3.0 * load, one.mean_ms));
        }
    }
    let title = format!("{}: latency over the load of one region", scenario.name);
    Ok(plot::latency_over_load(&title, "load of that region, as a multiple of its usual load", &lines))
}
