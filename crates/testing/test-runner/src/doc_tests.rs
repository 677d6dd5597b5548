//! Documentation tests, which `cargo test --doc` compiles and runs: one job next to the others, in which each test is
//! counted.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    run::{Finished, Outcome, run_command},
    test_binaries::cargo,
};

/// Name of the job.
pub(crate) const NAME: &str = "documentation tests";

/// Runs all documentation tests.
///
/// # Errors
/// When cargo cannot be started.
pub(crate) async fn run() -> Result<Vec<Finished>, String> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    let began = Instant::now();
    let (status, output) = run_command(command).await.map_err(|error| format!("{NAME}: {error}"))?;
    let mut finished = parse(&output);
    let found = finished.iter().any(|test| matches!(test.outcome, Outcome::Failed(_)));
    if !status.is_some_and(|status| status.success()) && !found {
        finished.push(of(NAME, Outcome::Failed("they do not compile, or do not end".into())));
    }
    // The duration of each test is unknown. The first failed test gets the output, which explains all failures of the
    // job.
    if let Some(failed) = finished.iter_mut().find(|test| matches!(test.outcome, Outcome::Failed(_))) {
        failed.output = output;
        failed.took = began.elapsed();
    }
    Ok(finished)
}

fn of(name: &str, outcome: Outcome) -> Finished {
    Finished { name: name.to_owned(), outcome, took: Duration::ZERO, output: String::new() }
}

/// Parses lines such as `test src/lib.rs - Mesh (line 12) ... ok`.
fn parse(output: &str) -> Vec<Finished> {
    let tests = output.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let tests = tests.filter_map(|(name, result)| {
        let outcome = match result {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed("see the output of the documentation tests".into()),
            _ => return None,
        };
        Some(of(name, outcome))
    });
    tests.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documentation_test_is_counted() {
        let output = "running 3 tests\ntest src/lib.rs - A (line 3) ... ok\ntest src/lib.rs - B (line 9) ... FAILED\n\
                      test src/lib.rs - C (line 12) - compile ... ok\ntest src/a.rs - D (line 1) ... ignored\n\
                      test result: FAILED. 2 passed; 1 failed; 1 ignored\n";
        let all = parse(output);
        assert_eq!(all.len(), 3);
        assert_eq!(all.iter().filter(|test| test.outcome == Outcome::Passed).count(), 2);
        assert_eq!(all[1].name, "src/lib.rs - B (line 9)");
    }
}
