//! Runs the tests of the workspace: each test in a process of its own, several at a time over all test binaries.
//!
//! `cargo test` runs one test binary after another, each with as many threads as there are cores. Most of our tests wait for
//! processes and timers, so that the cores were half idle. `cargo-nextest` runs tests as this does; it has no notion of a test that finds
//! out at run time that the machine lacks something, runs no documentation tests, and has to be compiled for minutes on a fresh machine.
//!
//! A test tells the runner two things, by the functions of `fairmesh-test-support`: that it needs the machine for itself (exit code
//! `NEEDS_MACHINE`, after which it is run again when no other test runs), and that it was skipped (a line of its output that
//! begins with `SKIPPED`).

mod build;
mod doc_tests;
mod listing;
mod options;
mod report;
mod run;
mod schedule;

use std::process::ExitCode;

use clap::Parser as _;
use options::Options;
use report::Report;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run_all(&Options::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("test-runner: {error}");
            // A line of counts closes every run.
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// Builds, lists, runs and reports; whether the run counts as successful.
async fn run_all(options: &Options) -> Result<bool, String> {
    let binaries = build::test_binaries(&options.cargo_selection()).await?;
    let listed = listing::list(&binaries).await?;
    let selected: Vec<_> =
        listed.tests.into_iter().filter(|test| options.selects(&test.full_name())).collect();
    let doc_tests = options.with_doc_tests();
    if selected.is_empty() && !doc_tests {
        return Err("no test matches".into());
    }
    let mut report = Report::new(selected.len(), options.no_skips);
    schedule::run(schedule::order(selected), doc_tests, options.jobs(), &mut report).await?;
    let ignored: Vec<_> = listed.ignored.into_iter().filter(|name| options.selects(name)).collect();
    Ok(report.close(&ignored))
}
