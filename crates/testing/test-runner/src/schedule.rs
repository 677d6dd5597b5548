use std::{collections::BTreeSet, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{Instant, Interval, interval_at},
};

use crate::{
    doc_tests,
    report::Report,
    run::{self, Finished, Mode, Outcome},
    test_listing::Test,
};

/// Maximum number of failed tests that run again.
const MAX_REPEATED: usize = 10;
/// Interval at which the runner prints which tests it waits for.
const PROGRESS: Duration = Duration::from_secs(15);

/// Parts of the names of the longest tests. They start first, so that none of them is the last to run. The final list
/// of slowest tests shows candidates for this list.
const LONGEST: &[&str] = &[
    "fairmesh::outages::",
    "::imbalance::",
    "store::power::",
    "store::kill",
    "agent::maps::",
    "faults::services::",
    "::damage::",
    "::rib::writes::fleet::",
    "replica::kill",
    "fairmesh::packages::",
    "faults::traffic::",
    "::differential::",
    "fairmesh::faults::",
];

/// Orders tests by when they start.
pub(crate) fn order(mut tests: Vec<Test>) -> Vec<Test> {
    tests.sort_by_cached_key(|test| rank(&test.full_name()));
    tests
}

fn rank(name: &str) -> usize {
    LONGEST.iter().position(|part| name.contains(part)).unwrap_or(LONGEST.len())
}

/// Result of one job of the runner.
type Job = Result<(Option<Test>, Vec<Finished>), String>;

struct Schedule<'a> {
    jobs: usize,
    running: JoinSet<Job>,
    names: BTreeSet<String>,
    progress: Interval,
    interrupts: [Signal; 2],
    /// Tests that failed in their first run.
    failed: Vec<Test>,
    report: &'a mut Report,
}

/// Runs tests, `jobs` at a time. Tests that need the machine for themselves run afterwards, one by one; failed tests
/// run once more, alone.
///
/// # Errors
/// When a test cannot be started, or on an interrupt; running tests are killed.
pub(crate) async fn run(
    tests: Vec<Test>,
    doc_tests: bool,
    jobs: usize,
    report: &mut Report,
) -> Result<(), String> {
    let interrupt = |kind| signal(kind).map_err(|error| error.to_string());
    let mut schedule = Schedule {
        jobs,
        running: JoinSet::new(),
        names: BTreeSet::new(),
        progress: interval_at(Instant::now() + PROGRESS, PROGRESS),
        interrupts: [interrupt(SignalKind::interrupt())?, interrupt(SignalKind::terminate())?],
        failed: Vec::new(),
        report,
    };
    if doc_tests {
        schedule.names.insert(doc_tests::NAME.into());
        schedule.running.spawn(async { Ok((None, doc_tests::run().await?)) });
    }
    let alone = schedule.run_all(tests, Mode::Shared).await?;
    schedule.jobs = 1;
    schedule.run_all(alone, Mode::Alone).await?;
    schedule.repeat_failed().await
}

impl Schedule<'_> {
    /// Runs these tests to their ends. Returns the tests that must run without others.
    async fn run_all(&mut self, tests: Vec<Test>, mode: Mode) -> Result<Vec<Test>, String> {
        let (mut waiting, mut alone) = (tests.into_iter(), Vec::new());
        loop {
            while self.running.len() < self.jobs
                && let Some(test) = waiting.next()
            {
                self.names.insert(test.full_name());
                self.running.spawn(async move {
                    let finished = run::run(&test, mode).await?;
                    Ok((Some(test), vec![finished]))
                });
            }
            let Some((test, finished)) = self.next().await? else { return Ok(alone) };
            for one in finished {
                match (&one.outcome, &test) {
                    (Outcome::NeedsMachine, Some(test)) => {
                        alone.push(test.clone());
                        continue;
                    }
                    (Outcome::Failed(_), Some(test)) => self.failed.push(test.clone()),
                    _ => {}
                }
                self.report.add(one);
            }
        }
    }

    /// Runs failed tests again, each alone. If there are more than [`MAX_REPEATED`], they stay failed, because the
    /// fault is not flakiness.
    async fn repeat_failed(&mut self) -> Result<(), String> {
        let failed = std::mem::take(&mut self.failed);
        if failed.len() > MAX_REPEATED {
            return Ok(());
        }
        for test in failed {
            self.names.insert(test.full_name());
            self.running.spawn(async move { Ok((None, vec![run::run(&test, Mode::Alone).await?])) });
            while let Some((_, finished)) = self.next().await? {
                finished.into_iter().for_each(|again| self.report.add_repeated(again));
            }
            self.names.clear();
        }
        Ok(())
    }

    /// The next finished job; `None` if none is running.
    async fn next(&mut self) -> Result<Option<(Option<Test>, Vec<Finished>)>, String> {
        loop {
            let [interrupt, terminate] = &mut self.interrupts;
            tokio::select! {
                done = self.running.join_next() => {
                    let Some(done) = done else { return Ok(None) };
                    let done = done.map_err(|error| error.to_string())??;
                    let name = done.0.as_ref().map_or_else(|| doc_tests::NAME.to_owned(), Test::full_name);
                    self.names.remove(&name);
                    return Ok(Some(done));
                }
                _ = self.progress.tick() => self.report.progress(&self.names),
                _ = interrupt.recv() => return Err("interrupted".into()),
                _ = terminate.recv() => return Err("terminated".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::test_binaries::Binary;

    #[test]
    fn longest_tests_are_scheduled_first() {
        let test = |id: &str, name: &str| Test {
            binary: Arc::new(Binary { id: id.into(), path: "x".into(), package: "y".into() }),
            name: name.into(),
        };
        let tests = vec![
            test("client", "a"),
            test("fairmesh::faults", "tls::b"),
            test("fairmesh::outages", "c"),
            test("fairmesh::faults", "imbalance::d"),
        ];
        let names: Vec<_> = order(tests).iter().map(|test| test.name.clone()).collect();
        assert_eq!(names, ["c", "imbalance::d", "tls::b", "a"]);
    }
}
