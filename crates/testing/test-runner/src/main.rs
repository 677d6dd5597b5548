//! Runs the tests of the workspace: each test in its own process, several at a time over all test binaries.
//!
//! `cargo test` runs one test binary after another, each with as many threads as there are cores. Most of our tests
//! wait for processes and timers, so the cores were half idle. `cargo-nextest` runs tests as this program does, but a
//! test cannot report at run time that the machine lacks something, it runs no documentation tests, and compiling it
//! takes minutes on a fresh machine.
//!
//! A test reports two things to the runner through functions of `fairmesh-test-support`: that it needs the machine for
//! itself (exit code `NEEDS_MACHINE`, after which it runs again when no other test runs), and that it was skipped (an
//! output line that begins with `SKIPPED`).

mod doc_tests;
mod options;
mod report;
mod run;
mod schedule;
mod test_binaries;
mod test_listing;

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
            // Every run ends with a line of counts.
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// Builds, lists, runs and reports. Returns whether the run was successful.
async fn run_all(options: &Options) -> Result<bool, String> {
    let binaries = test_binaries::test_binaries(&options.cargo_selection()).await?;
    let listed = test_listing::list(&binaries).await?;
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
