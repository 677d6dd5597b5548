use std::{path::PathBuf, process::ExitCode, thread};

use clap::Args;
use fairmesh_console::{arguments::OutputArgs, failure::Failure, output};
use fairmesh_sim::{
    Ratio, Summary,
    sweep::{Grid, SweepResult, sweep},
};
use indicatif::{ProgressBar, ProgressStyle};

use super::{write_figures, write_file};
use crate::manifests;

/// Play a grid of constants, or one constant at a time, on many fleets.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// The file with the grid.
    #[arg(value_name = "GRID")]
    grid: PathBuf,
    /// Write the summaries to this file as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write a line per fleet and combination to this file, for spreadsheets.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the effect of each on utilisation and latency into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Number of threads [default: one per core].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) fn run(args: &SweepArgs) -> Result<ExitCode, Failure> {
    let grid: Grid = manifests::load_one(&args.grid, Grid::validate)?;
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let bar = ProgressBar::new(grid.simulations()?);
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} simulations, {eta} left");
    // The template is a valid constant; the default bar would do as well.
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(grid.name.clone());
    let result = sweep(&grid, threads, || bar.inc(1))?;
    bar.finish_and_clear();
    if args.output_args.is_table() {
        output::write(&table(&result))?;
    }
    write_figures(&result, args.report.as_deref(), args.output_args)?;
    if let Some(path) = &args.csv {
        write_file(path, &result.csv())?;
    }
    if let Some(path) = &args.svg {
        write_file(path, &result.plot())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(result: &SweepResult) -> String {
    let row = |summary: &Summary| {
        let number = |value: f64| format!("{value:.4}");
        let ratio = |ratio: Ratio| format!("{:.4} ± {:.4}", ratio.mean, ratio.error);
        let (best, worst) = summary.p99_range;
        vec![
            summary.name.clone(),
            summary.fleets.to_string(),
            number(summary.cv),
            number(summary.baseline_cv),
            ratio(summary.p99),
            summary.p99_worst_mixes.map_or_else(|| "-".into(), number),
            format!("{best:.3} to {worst:.3}"),
            ratio(summary.p99_latency),
            number(summary.wasted),
            number(summary.polls_per_call),
        ]
    };
    let head = [
        "POLICY",
        "FLEETS",
        "CV",
        "CV BASE",
        "P99",
        "P99 WORST MIXES",
        "P99 RANGE",
        "P99 LATENCY",
        "WASTED",
        "ASKED",
    ];
    let rows: Vec<_> = result.summaries.iter().map(row).collect();
    let note = "CV is the median over the fleets that it was played on, CV BASE the baseline's on the same ones; the \
                others are parts of the baseline's, which comes first, as means with their standard errors. ASKED is \
                questions for load a call.\n";
    output::table(&head, &rows) + note
}
