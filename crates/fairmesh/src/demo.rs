//! `fairmesh demo`: a shop over three regions on this machine, load on it, and five things that go wrong; then programs that
//! know nothing of Fairmesh, through a sidecar.
//!
//! Every part is a real process of this binary (and one plain Python program), so that what the demo shows is what
//! runs elsewhere; only the distances between regions are made up, by a relay.

mod events;
mod fleet;
mod load;
mod process;
mod programs;
mod relay;
mod report;
mod running;
mod service;
mod tally;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use self::{events::Pace, load::Load, report::Totals, running::Running, tally::Tally};
use crate::signals;

/// The generated types of the demo's own protocol.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::disallowed_methods
)]
mod v1 {
    tonic::include_proto!("fairmesh.demo.v1");
}

/// Run a shop over three regions on this machine, load it, break it, report what callers saw, and let other programs call it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DemoArgs {
    /// Shorter phases and less load: under a minute.
    #[arg(long)]
    quick: bool,
    /// Leave the fleet running afterwards, until Ctrl-C, to try things on it.
    #[arg(long)]
    keep: bool,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep sockets, data and logs of the fleet here instead of in a temporary folder.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Calls a second, over all regions.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(3..=20_000))]
    rate: u32,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts that the demo starts as processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// One server of the shop.
    #[command(hide = true)]
    Serve(service::ServeArgs),
}

/// What can keep the demo from running.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// A part did not come up or did not do as told; the message quotes its log.
    #[error("{0}")]
    Fleet(String),
    /// The operating system refused something.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Calls failed that must not.
    #[error("{0} calls failed that should not have; the table above says when and why")]
    CallsFailed(u64),
    /// Programs reached something else than was foretold, or nothing.
    #[error(
        "{0} calls of programs failed or went elsewhere than 'fairmesh explain' says; the last table says which"
    )]
    ProgramsDiffer(u64),
}

/// Runs the demo, or one part of it.
pub(crate) async fn run(args: DemoArgs) -> Result<(), DemoError> {
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
    // In place before the first process, so that a signal in between does not leave it behind.
    let terminated = signals::heard()?;
    tokio::pin!(terminated);
    eprintln!("Starting the shop in {}:", dir.display());
    let mut fleet = Running::start(&dir, &tell)?;
    let outcome = tokio::select! {
        outcome = play(&mut fleet, &args) => outcome,
        () = &mut terminated => Err(interrupted()),
    };
    if args.keep && outcome.is_ok() {
        tell_of_kept(&fleet, &dir, args.dir.is_some());
        terminated.await;
    }
    // However it went: a server takes along what it started only when it is asked to stop.
    let stopped = fleet.stop().await;
    outcome.and(stopped)
}

fn interrupted() -> DemoError {
    io::Error::new(io::ErrorKind::Interrupted, "stopped by a signal").into()
}

/// Brings the fleet up and shows what it can bear.
async fn play(fleet: &mut Running, args: &DemoArgs) -> Result<(), DemoError> {
    let start = Instant::now();
    fleet.up(&tell).await?;
    eprintln!("  up after {:.1} s\n", start.elapsed().as_secs_f64());
    show(fleet, args).await
}

fn tell(what: &str) {
    eprintln!("  {what}");
}

/// Loads the fleet, lets the events happen, and reports.
async fn show(fleet: &mut Running, args: &DemoArgs) -> Result<(), DemoError> {
    let tally = Arc::new(Tally::new());
    let load = Load::start(fleet, &tally, args.rate).await?;
    let progress = progress();
    let start = Instant::now();
    let story = {
        let say = |what: &str| progress.set_prefix(what.to_owned());
        let events = events::run(fleet, &tally, pace(args.quick), &say);
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
    print!("{}", report::text(&tally, &story, totals));
    let second = programs::play(fleet).await?;
    println!("{}", second.text());
    if let Some(file) = &args.json {
        let mut figures = report::json(&tally, &story, totals);
        figures["programs"] = second.json();
        std::fs::write(file, format!("{figures:#}\n"))?;
    }
    let total = tally.total();
    match (total.failed - total.in_flight, second.differing()) {
        (0, 0) => Ok(()),
        (0, differing) => Err(DemoError::ProgramsDiffer(differing)),
        (failed, _) => Err(DemoError::CallsFailed(failed)),
    }
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
    // The template is a constant that parses; a default bar would do as well.
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_prefix("calm");
    bar
}

fn show_progress(bar: &ProgressBar, tally: &Tally, load: &Load) {
    let total = tally.total();
    bar.set_message(format!("{} calls, {} attempts, {} failed", total.calls, load.attempts(), total.failed));
    bar.tick();
}

fn tell_of_kept(fleet: &Running, dir: &Path, stays: bool) {
    let agent = fleet.agent_socket(fleet::PLACES[0]);
    let binary = fleet.binary.display();
    println!("The load has stopped; the shop goes on until Ctrl-C. In another terminal:\n");
    println!("  export FAIRMESH_CONTROL={} FAIRMESH_AGENT={agent}", fleet.control_address);
    println!("  {binary} get endpoints");
    println!("  {binary} explain shop/cart --key 618 --role secondary --region {}", fleet::PLACES[0].name);
    println!("  {binary} call shop/recommend /for/apples -v");
    if let Some(sidecar) = fleet.sidecar_address() {
        println!("  http_proxy=http://{sidecar} curl -i http://catalog.shop/items/7");
    }
    println!(
        "  {binary} register shop/hello --address 127.0.0.1:8000 -- python3 -m http.server 8000 --bind 127.0.0.1"
    );
    println!("  curl http://{}/metrics\n", fleet.control_http);
    let then = if stays { "it stays" } else { "it goes with the shop; --dir keeps it" };
    println!("Sockets, data and logs are in {}: {then}.", dir.display());
}
