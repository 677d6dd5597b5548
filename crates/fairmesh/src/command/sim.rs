//! Simulated fleets: a table for people, JSON for programs, a picture for both.

mod show;
mod sweep;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use fairmesh_sim::{Outcome, Scenario, plot};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::{failure::Failure, manifests, output};

/// What to do with simulated fleets.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Play scenarios; exits 1 when one does not do what its file expects.
    Run(RunArgs),
    /// Try every combination of a grid of constants on many generated fleets, on all cores.
    Sweep(sweep::SweepArgs),
}

/// Play scenarios.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Files, each with one scenario.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Start chance here instead of where the files say.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the figures to this file as JSON, one object a scenario, in a list.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the utilisation of every server over time into this file; of several scenarios, into FILE-NAME.svg each.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Carries out what was typed.
pub(crate) fn run(command: SimCommand) -> Result<ExitCode, Failure> {
    match command {
        SimCommand::Run(args) => play_all(&args),
        SimCommand::Sweep(args) => sweep::run(&args),
    }
}

fn play_all(args: &RunArgs) -> Result<ExitCode, Failure> {
    // All files before the first simulation: a slip of the pen in the last is said at once.
    let load = |file: &PathBuf| -> Result<Scenario, Failure> {
        let mut scenario: Scenario = manifests::load_one(file, Scenario::validate)?;
        scenario.seed = args.seed.unwrap_or(scenario.seed);
        Ok(scenario)
    };
    let scenarios: Vec<Scenario> = args.files.iter().map(load).collect::<Result<_, _>>()?;
    let mut reports = Vec::new();
    for scenario in &scenarios {
        let (outcome, took) = play(scenario)?;
        output::write(&show::report(scenario, &outcome.report, took))?;
        if let Some(path) = &args.svg {
            let path = picture_path(path, scenario, scenarios.len());
            write_file(&path, &plot::utilisation(scenario, &outcome))?;
        }
        reports.push(outcome.report);
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&reports).map_err(Failure::failed)?;
        write_file(path, &(text + "\n"))?;
    }
    let met = reports.iter().all(|report| report.missed.is_empty());
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays one scenario behind a progress bar; also says how long it took.
fn play(scenario: &Scenario) -> Result<(Outcome, Duration), Failure> {
    let bar = ProgressBar::new(scenario.duration.nanos() / 1_000_000_000);
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} s, {eta} left");
    // The template is a constant that parses; a default bar would do as well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(scenario.name.clone());
    let began = Instant::now();
    let outcome = fairmesh_sim::run(scenario, |now| bar.set_position(now.nanos() / 1_000_000_000))?;
    bar.finish_and_clear();
    Ok((outcome, began.elapsed()))
}

fn picture_path(path: &Path, scenario: &Scenario, of: usize) -> PathBuf {
    if of == 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{}.svg", scenario.name))
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| {
        Failure::failed_with(
            format!("cannot write {}: {error}", path.display()),
            "name a file in a folder that exists",
        )
    })
}
