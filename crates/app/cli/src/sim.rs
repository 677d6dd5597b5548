//! `fairmesh sim`: simulated fleets, with results as a table, JSON and a chart.

mod application;
mod parameter_sweep;
mod replica_tree;
mod result_report;
mod traffic_report;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use fairmesh_console::{arguments::OutputArgs, failure::Failure, output};
use fairmesh_sim::{Scenario, SimulationResult, plot, scenario::SimTime};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::Instant;

use crate::manifests;

/// Commands on simulated fleets.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Play scenarios; exits 1 when one does not meet the expectations in its file.
    Run(RunArgs),
    /// Play every combination of a grid of constants on many generated fleets, on all cores.
    Sweep(parameter_sweep::SweepArgs),
}

/// Arguments of `fairmesh sim run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Files, each with one scenario.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The random seed, instead of that of the files.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Scale the fleets of trees (kind: tree): 0.01 is a hundredth of their services, machines and writes.
    #[arg(long, value_name = "TIMES", value_parser = factor)]
    factor: Option<f64>,
    /// Write the figures to this file as a JSON list with one object per scenario.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draw into this file: utilisation over time of every server, or of every region with `traffic`; propagation delay
    /// of a tree; or latency of an application by planner. With several scenarios, into one FILE-NAME.svg each.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Runs the command.
pub fn run(command: SimCommand) -> Result<ExitCode, Failure> {
    match command {
        SimCommand::Run(args) => play_all(&args),
        SimCommand::Sweep(args) => parameter_sweep::run(&args),
    }
}

/// A parsed scenario.
#[derive(Debug)]
enum Loaded {
    Fleet(Box<Scenario>),
    Tree(Box<fairmesh_sim::replica_tree::Scenario>),
    Application(Box<fairmesh_sim::application::Scenario>),
}

/// The `kind` of tree and application scenarios; fleets have none.
const TREE: &str = "tree";
const APPLICATION: &str = "app";

fn play_all(args: &RunArgs) -> Result<ExitCode, Failure> {
    // Read all files before the first simulation, so that an error in the last one is reported at once.
    let loaded: Vec<Vec<Loaded>> =
        args.files.iter().map(|file| load(file, args)).collect::<Result<_, _>>()?;
    let scenarios: Vec<Loaded> = loaded.into_iter().flatten().collect();
    let (mut reports, mut met) = (Vec::new(), true);
    for scenario in &scenarios {
        let (report, missed) = match scenario {
            Loaded::Fleet(scenario) => play_fleet(scenario, args)?,
            Loaded::Tree(scenario) => replica_tree::play(scenario, args)?,
            Loaded::Application(scenario) => application::play(scenario, args, scenarios.len())?,
        };
        reports.push(report);
        met &= !missed;
    }
    write_figures(&reports, args.report.as_deref(), args.output_args)?;
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes figures to a file, and prints them if the output format is JSON.
fn write_figures<T: Serialize>(
    figures: &T,
    file: Option<&Path>,
    output_args: OutputArgs,
) -> Result<(), Failure> {
    if let Some(path) = file {
        let text = serde_json::to_string_pretty(figures).map_err(Failure::failed)?;
        write_file(path, &(text + "\n"))?;
    }
    output::print_one(output_args.format(), figures, "")
}

/// The scenario in a file. An application also has its variants.
fn load(file: &Path, args: &RunArgs) -> Result<Vec<Loaded>, Failure> {
    match manifests::kind_of(file, &[TREE, APPLICATION])?.as_deref() {
        Some(TREE) => return Ok(vec![replica_tree::load(file, args)?]),
        Some(_) => return application::load(file, args),
        None => {}
    }
    let mut scenario: Scenario = manifests::load_one(file, Scenario::validate)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    Ok(vec![Loaded::Fleet(Box::new(scenario))])
}

/// Simulates a fleet. Returns its figures as JSON, and whether any expectation was missed.
fn play_fleet(scenario: &Scenario, args: &RunArgs) -> Result<(serde_json::Value, bool), Failure> {
    let (result, took) = play(scenario)?;
    if args.output_args.is_table() {
        output::write(&result_report::report(scenario, &result.report, took))?;
        if let Some(traffic) = &result.report.traffic {
            output::write(&traffic_report::traffic(traffic))?;
        }
    }
    if let Some(path) = &args.svg {
        let path = picture_path(path, &scenario.name, args.files.len());
        let picture = match &result.report.traffic {
            Some(traffic) => plot::regions(&scenario.name, traffic),
            None => plot::utilisation(scenario, &result),
        };
        write_file(&path, &picture)?;
    }
    let report = serde_json::to_value(&result.report).map_err(Failure::failed)?;
    Ok((report, !result.report.missed.is_empty()))
}

/// Plays one scenario with a progress bar. Returns the elapsed time as well.
fn play(scenario: &Scenario) -> Result<(SimulationResult, Duration), Failure> {
    let bar = progress(&scenario.name, scenario.duration);
    let began = Instant::now();
    let result = fairmesh_sim::run(scenario, |now| bar.set_position(now.nanos() / 1_000_000_000))?;
    bar.finish_and_clear();
    Ok((result, began.elapsed()))
}

fn progress(name: &str, duration: SimTime) -> ProgressBar {
    let bar = ProgressBar::new(duration.nanos() / 1_000_000_000);
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} s, {eta} left");
    // The template is a valid constant; the default bar would do as well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar
}

/// Parses a positive factor with which the fleet still fits in memory.
fn factor(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|times| (0.0001..=100.0).contains(times))
        .ok_or_else(|| "write 0.0001 to 100".into())
}

fn picture_path(path: &Path, name: &str, of: usize) -> PathBuf {
    if of == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{name}.svg"))
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| {
        Failure::failed_with(
            format!("cannot write {}: {error}", path.display()),
            "name a file in a folder that exists",
        )
    })
}
