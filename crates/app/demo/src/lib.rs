//! `fairmesh demo`: a shop over three regions on this machine under load, with seven injected events; then unmodified
//! programs through a sidecar, and through the kernel.
//!
//! Every component is a real process of this binary (and one plain Python program), so that the demo shows production
//! code; only the distances between regions are simulated, by a relay.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod call_stats;
mod delay_relay;
mod error;
mod fleet;
mod identities;
mod injected_events;
mod kernel_form;
mod measured_distances;
mod open_loop_load;
mod process;
mod process_waits;
mod region_drain;
mod report;
mod service;
mod service_pair_counts;
mod shop_protocol;
mod tls_records;
mod topology;
mod unmodified_programs;

use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand};
use fairmesh_console::{arguments::OutputArgs, output, stop_signals};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

pub use self::error::DemoError;
use self::{
    call_stats::CallStats, fleet::Fleet, injected_events::Pace, open_loop_load::Load, report::Totals,
};

/// Calls a second that go on while the shop is kept.
const KEPT_RATE: u32 = 9;

/// Run a shop over three regions on this machine under load, inject failures, report the calls, and let other programs
/// call it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    /// Shorter phases and less load: about a minute and a half.
    #[arg(long)]
    quick: bool,
    /// Leave the fleet running afterwards with a few calls a second, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep sockets, data and logs of the fleet here instead of in a temporary folder.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Calls a second, over all regions.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(3..=20_000))]
    rate: u32,
    #[command(flatten)]
    output_args: OutputArgs,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Components that the demo starts as separate processes.
#[derive(Debug, Subcommand)]
enum Part {
    /// One server of the shop.
    #[command(hide = true)]
    Serve(service::ServeArgs),
}

/// Runs the demo, or one component of it.
pub async fn run(args: DemoArgs) -> Result<(), DemoError> {
    if let Some(Part::Serve(serve)) = args.part {
        return service::serve(serve).await;
    }
    let temporary;
    let dir = match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)?;
            dir.canonicalize()?
        }
        None => {
            temporary = tempfile::Builder::new().prefix("fairmesh-demo-").tempdir()?;
            temporary.path().to_owned()
        }
    };
    // Installed before the first process starts, so that a signal in between does not orphan it.
    let terminated = stop_signals::termination()?;
    tokio::pin!(terminated);
    say(&format!("Starting the shop in {}:\n", dir.display()));
    let mut fleet = Fleet::start(&dir, &print_step)?;
    let played = tokio::select! {
        outcome = play(&mut fleet, &args) => Some(outcome),
        () = &mut terminated => None,
    };
    if args.keep
        && let Some(outcome) = &played
    {
        keep(&fleet, (dir.as_path(), args.dir.is_some()), outcome, terminated).await;
    }
    let outcome = played.unwrap_or_else(|| Err(interrupted()));
    // Also after an error: a server stops its children only when asked to stop.
    let stopped = fleet.stop().await;
    match outcome {
        Err(DemoError::ReaderGone) => stopped,
        outcome => outcome.and(stopped),
    }
}

/// Keeps the fleet until a signal, with a few calls if the demo succeeded. Also after an error, so that its cause can
/// be found, and if the output is closed.
async fn keep(
    fleet: &Fleet,
    (dir, stays): (&Path, bool),
    outcome: &Result<(), DemoError>,
    terminated: impl Future<Output = ()>,
) {
    if let Err(error) = outcome {
        say(&format!("\nThe demo has failed: {error}\n\n"));
    }
    // Without calls, the web page would show nothing after a minute. Only callers with an identity have a name there.
    let identity = service_pair_counts::caller().ok();
    let load = match outcome {
        Ok(()) => Load::start(fleet, &Arc::new(CallStats::new()), (KEPT_RATE, identity)).await.ok(),
        Err(_) => None,
    };
    let _ = output::write(&kept(fleet, dir, (stays, load.is_some())));
    terminated.await;
    if let Some(load) = load {
        load.stop().await;
    }
}

fn interrupted() -> DemoError {
    io::Error::new(io::ErrorKind::Interrupted, "stopped by a signal").into()
}

/// Starts the fleet and plays all parts.
async fn play(fleet: &mut Fleet, args: &DemoArgs) -> Result<(), DemoError> {
    let start = Instant::now();
    fleet.up(&print_step).await?;
    let page = format!("http://{}/ui/", fleet.control_http);
    say(&format!("  up after {:.1} s; who calls whom is shown at {page}\n\n", start.elapsed().as_secs_f64()));
    show(fleet, args).await
}

fn print_step(what: &str) {
    say(&format!("  {what}\n"));
}

/// Runs load and events, and reports.
async fn show(fleet: &mut Fleet, args: &DemoArgs) -> Result<(), DemoError> {
    let tally = Arc::new(CallStats::new());
    let load = Load::start(fleet, &tally, (args.rate, None)).await?;
    let progress = progress();
    let start = Instant::now();
    let story = {
        let say = |what: &str| progress.set_prefix(what.to_owned());
        let events = injected_events::run(fleet, &tally, pace(args.quick), &say);
        tokio::pin!(events);
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        loop {
            tokio::select! {
                story = &mut events => break story?,
                _ = tick.tick() => show_progress(&progress, &tally, &load),
            }
        }
    };
    progress.finish_and_clear();
    let (attempts, reuse) = load.stop().await;
    let totals = Totals { attempts, reuse, seconds: start.elapsed().as_secs_f64() };
    let shows = |text: &str| show_text(text, args);
    shows(&report::text(&tally, &story, totals))?;
    let distances = measured_distances::measured(fleet).await?;
    shows(&format!("{}\n\n", distances.table()))?;
    let second = unmodified_programs::play(fleet).await?;
    shows(&format!("{}\n", second.text()))?;
    let identities = identities::prove(fleet).await?;
    shows(&format!("{}\n", identities.text()))?;
    let pairs = service_pair_counts::count(fleet).await?;
    shows(&format!("{}\n", pairs.text()))?;
    let kernel = kernel_form::play(fleet).await?;
    shows(&format!("{}\n", kernel.text()))?;
    let mut figures = report::json(&tally, &story, totals);
    figures["distances"] = distances.json();
    figures["programs"] = second.json();
    figures["identities"] = identities.json();
    figures["pairs"] = pairs.json();
    figures["kernel"] = kernel.json();
    print_figures(&figures, args)?;
    outcome(&tally, &identities, &pairs, second.differing() + u64::from(kernel.differs()))
}

/// Returns the first claim of the demo that does not hold, if any. `programs_differing` is the number of responses
/// that differ between forms.
fn outcome(
    tally: &CallStats,
    identities: &identities::Identities,
    pairs: &service_pair_counts::Pairs,
    programs_differing: u64,
) -> Result<(), DemoError> {
    let problems = identities.problems();
    if !problems.is_empty() {
        return Err(DemoError::NotSecure(problems.join("; ")));
    }
    let differing = pairs.differing();
    if !differing.is_empty() {
        return Err(DemoError::CountsDiffer(differing.join("; ")));
    }
    let total = tally.total();
    match (total.failed - total.in_flight, programs_differing) {
        (0, 0) => Ok(()),
        (0, differing) => Err(DemoError::ProgramsDiffer(differing)),
        (failed, _) => Err(DemoError::CallsFailed(failed)),
    }
}

/// Prints a table, to standard error if the figures go to standard output.
fn show_text(text: &str, args: &DemoArgs) -> Result<(), DemoError> {
    if !args.output_args.is_table() {
        say(text);
        return Ok(());
    }
    match output::write_while_open(text.as_bytes()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(DemoError::ReaderGone),
        Err(failure) => Err(io::Error::other(failure.message()).into()),
    }
}

/// Prints to standard error. Unlike `eprint`, it does not panic if standard error is closed, because the fleet must
/// still be stopped.
fn say(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
}

/// Writes the figures as selected by the arguments.
fn print_figures(figures: &serde_json::Value, args: &DemoArgs) -> Result<(), DemoError> {
    if let Some(file) = &args.report {
        std::fs::write(file, format!("{figures:#}\n"))?;
    }
    let printed = output::print_one(args.output_args.format(), figures, "");
    printed.map_err(|failure| io::Error::other(format!("{failure:?}")).into())
}

fn pace(quick: bool) -> Pace {
    let seconds = Duration::from_secs_f64;
    if quick {
        Pace { calm: seconds(1.0), settle: seconds(1.5), outage: seconds(3.0) }
    } else {
        Pace { calm: seconds(4.0), settle: seconds(4.0), outage: seconds(12.0) }
    }
}

fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed:>4}  {prefix:14} {msg}");
    // The template is a valid constant; the default bar would do as well.
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_prefix("calm");
    bar
}

fn show_progress(bar: &ProgressBar, tally: &CallStats, load: &Load) {
    let total = tally.total();
    bar.set_message(format!("{} calls, {} attempts, {} failed", total.calls, load.attempts(), total.failed));
    bar.tick();
}

/// Suggests what to try while the shop runs.
fn kept(fleet: &Fleet, dir: &Path, (stays, has_calls): (bool, bool)) -> String {
    // Writing to a String cannot fail.
    let mut text = String::new();
    let agent = fleet.agent_socket(topology::REGIONS[0]);
    let binary = fleet.binary.display();
    let load = if has_calls {
        format!("{KEPT_RATE} calls a second go on")
    } else {
        "The load has stopped".to_owned()
    };
    let _ = writeln!(text, "{load}; the shop runs until Ctrl-C. In another terminal:\n");
    let _ = writeln!(text, "  export FAIRMESH_CONTROL={} FAIRMESH_AGENT={agent}", fleet.control_socket());
    let _ = writeln!(text, "  {binary} get endpoints");
    let _ = writeln!(
        text,
        "  {binary} explain shop/cart --key 618 --role secondary --region {}",
        topology::REGIONS[0].name
    );
    let _ = writeln!(text, "  {binary} call shop/recommend /for/apples -v");
    if let Some(sidecar) = fleet.sidecar_address() {
        let _ = writeln!(text, "  http_proxy=http://{sidecar} curl -i http://catalog.shop/items/7");
    }
    let _ = writeln!(
        text,
        "  {binary} register shop/hello --address 127.0.0.1:8000 -- python3 -m http.server 8000 --bind 127.0.0.1"
    );
    let _ = writeln!(text, "  curl http://{}/metrics\n", fleet.control_http);
    let _ = writeln!(text, "The web page is at http://{}/ui/.", fleet.control_http);
    let then = if stays { "it stays" } else { "it goes with the shop; --dir keeps it" };
    let _ = writeln!(text, "Sockets, data and logs are in {}: {then}.", dir.display());
    text
}
