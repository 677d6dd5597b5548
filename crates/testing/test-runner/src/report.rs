use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use crate::run::{Finished, Outcome};

/// Number of slowest tests in the final summary.
const SLOWEST: usize = 10;
/// Maximum number of tests in a run that prints a line for each passed test.
const FEW: usize = 60;
/// Maximum number of flaky tests in a successful run.
const MAX_FLAKY: usize = 2;

/// Results so far.
pub(crate) struct Report {
    began: Instant,
    selected: usize,
    no_skips: bool,
    passed: usize,
    failed: Vec<String>,
    /// Tests that failed at first and passed when run again alone.
    flaky: Vec<String>,
    /// Names of skipped tests, with reasons.
    skipped: Vec<(String, String)>,
    took: Vec<(Duration, String)>,
}

impl Report {
    /// A report for `selected` tests. With `no_skips`, a skipped test counts as failed.
    pub(crate) fn new(selected: usize, no_skips: bool) -> Self {
        Self {
            began: Instant::now(),
            selected,
            no_skips,
            passed: 0,
            failed: Vec::new(),
            flaky: Vec::new(),
            skipped: Vec::new(),
            took: Vec::new(),
        }
    }

    /// Counts a test. If it failed, prints it with its output; if it was skipped, prints it.
    pub(crate) fn add(&mut self, test: Finished) {
        let seconds = test.took.as_secs_f64();
        match test.outcome {
            Outcome::Passed => {
                self.passed += 1;
                if self.selected <= FEW {
                    println!("passed   {seconds:6.1} s  {}", test.name);
                }
            }
            Outcome::Skipped(reason) => {
                println!("skipped  {seconds:6.1} s  {}: {reason}", test.name);
                if self.no_skips {
                    self.failed.push(test.name.clone());
                }
                self.skipped.push((test.name.clone(), reason));
            }
            Outcome::Failed(how) => self.add_failure(&test.name, &how, (seconds, &test.output)),
            Outcome::NeedsMachine => {
                self.add_failure(&test.name, "it runs alone and still asks for it", (seconds, &test.output));
            }
        }
        self.took.push((test.took, test.name));
    }

    fn add_failure(&mut self, name: &str, how: &str, (seconds, output): (f64, &str)) {
        println!("\nFAILED   {seconds:6.1} s  {name}: {how}");
        println!("---- output of {name}\n{}\n---- end of {name}\n", output.trim_end());
        self.failed.push(name.to_owned());
    }

    /// Counts the second run of a failed test. If it passes now, it is flaky; otherwise it stays failed.
    pub(crate) fn add_repeated(&mut self, again: Finished) {
        let (seconds, name) = (again.took.as_secs_f64(), again.name);
        let passed = again.outcome == Outcome::Passed;
        let verdict = if passed { "FLAKY" } else { "FAILED" };
        println!(
            "\n{verdict:8} {seconds:6.1} s  {name}: {} alone",
            if passed { "passed" } else { "failed again" }
        );
        println!("---- output of {name}, alone\n{}\n---- end of {name}\n", again.output.trim_end());
        if passed {
            self.failed.retain(|failed| *failed != name);
            self.flaky.push(name);
        }
    }

    /// Prints the progress of the run, and the tests it waits for.
    pub(crate) fn progress(&self, running: &BTreeSet<String>) {
        let names: Vec<&str> = running.iter().map(String::as_str).collect();
        println!(
            "{:4} s: {} of {} done, {} failed; running: {}",
            self.began.elapsed().as_secs(),
            self.took.len(),
            self.selected.max(self.took.len()),
            self.failed.len(),
            names.join(", ")
        );
    }

    /// Prints the summary of a run. Returns whether it was successful: something ran, nothing failed twice, and at most
    /// [`MAX_FLAKY`] tests are flaky.
    pub(crate) fn close(mut self, ignored: &[String]) -> bool {
        self.took.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        println!("\nslowest:");
        for (took, name) in self.took.iter().take(SLOWEST) {
            println!("  {:6.1} s  {name}", took.as_secs_f64());
        }
        if !ignored.is_empty() {
            println!("{} ignored, for the reason in `#[ignore]`: {}", ignored.len(), ignored.join(", "));
        }
        if !self.skipped.is_empty() {
            println!("skipped:");
            self.skipped.iter().for_each(|(name, reason)| println!("  {name}: {reason}"));
        }
        self.close_flaky();
        if !self.failed.is_empty() {
            println!("failed:");
            self.failed.iter().for_each(|name| println!("  {name}"));
        }
        let ran = self.passed > 0 || !self.skipped.is_empty();
        if !ran && self.failed.is_empty() {
            println!("no test ran");
            self.failed.push(String::new());
        }
        // With `no_skips`, skipped tests count among the failed ones.
        let skipped = if self.no_skips { 0 } else { self.skipped.len() };
        println!("in {:.0} s", self.began.elapsed().as_secs_f64());
        println!("{} passed, {} failed, {skipped} skipped", self.passed, self.failed.len());
        self.failed.is_empty()
    }

    /// Lists the flaky tests, and counts them as passed, or as failed if there are too many.
    fn close_flaky(&mut self) {
        if self.flaky.is_empty() {
            return;
        }
        println!("flaky, each a fault until it is explained:");
        self.flaky.iter().for_each(|name| println!("  {name}"));
        if self.flaky.len() > MAX_FLAKY {
            println!("more than {MAX_FLAKY} are flaky: they count as failed");
            self.failed.append(&mut self.flaky);
        } else {
            self.passed += self.flaky.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(outcomes: &[Outcome], no_skips: bool) -> bool {
        let mut report = Report::new(outcomes.len(), no_skips);
        for outcome in outcomes {
            let (name, took, output) = ("a".into(), Duration::ZERO, String::new());
            report.add(Finished { name, outcome: outcome.clone(), took, output });
        }
        report.close(&[])
    }

    #[test]
    fn test_run_succeeds_if_tests_ran_and_none_failed() {
        assert!(close(&[Outcome::Passed], true));
        assert!(!close(&[], false), "nothing ran");
        assert!(!close(&[Outcome::Passed, Outcome::Failed("exit code 101".into())], false));
    }

    /// Whether a run is successful if this many tests fail, with these outcomes of their second run.
    fn close_repeated(again: &[Outcome]) -> bool {
        let mut report = Report::new(again.len(), true);
        let finished = |at: usize, outcome: &Outcome| Finished {
            name: format!("test {at}"),
            took: Duration::ZERO,
            output: String::new(),
            outcome: outcome.clone(),
        };
        let failed = Outcome::Failed("exit code 101".into());
        (0..again.len()).for_each(|at| report.add(finished(at, &failed)));
        again.iter().enumerate().for_each(|(at, outcome)| report.add_repeated(finished(at, outcome)));
        report.close(&[])
    }

    #[test]
    fn three_flaky_tests_fail_test_run() {
        assert!(close_repeated(&[Outcome::Passed, Outcome::Passed]));
        assert!(!close_repeated(&[Outcome::Passed, Outcome::Passed, Outcome::Passed]));
    }

    #[test]
    fn repeatedly_failing_test_fails_test_run() {
        for again in [
            Outcome::Failed("exit code 101".into()),
            Outcome::Skipped("no etcd".into()),
            Outcome::NeedsMachine,
        ] {
            assert!(!close_repeated(&[Outcome::Passed, again]));
        }
    }

    #[test]
    fn skipped_test_fails_test_run_only_if_forbidden() {
        let outcomes = [Outcome::Passed, Outcome::Skipped("no etcd".into())];
        assert!(close(&outcomes, false));
        assert!(!close(&outcomes, true));
    }
}
