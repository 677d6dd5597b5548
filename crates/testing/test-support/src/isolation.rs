//! A test's requirements on the machine, and what happens if they are not met.
//!
//! The test runner gives each test its own process and runs several at a time; `cargo test` runs several threads in one
//! process. In both cases, a test that measures time or memory is kept apart from others.

use std::{
    env,
    fmt::Display,
    io::{self, Write as _},
    process,
};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Environment variable by which the test runner tells a test whether other tests run: [`RUNS_SHARED`] or
/// [`RUNS_ALONE`].
pub const MODE: &str = "FAIRMESH_TEST_RUN";
/// Other tests run at the same time.
pub const RUNS_SHARED: &str = "shared";
/// No other test runs.
pub const RUNS_ALONE: &str = "alone";
/// Exit code of a test that needs the machine for itself while others run. The test runner then runs it again alone.
pub const NEEDS_MACHINE: i32 = 75;
/// Prefix of the line that a skipped test prints, before the reason.
pub const SKIPPED: &str = "skipped: ";

/// Separates tests within one process.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Guard of a test that runs together with others.
pub type Shared = RwLockReadGuard<'static, ()>;
/// Guard of a test that runs alone.
pub type Exclusive = RwLockWriteGuard<'static, ()>;

/// Allows other tests at the same time, as nearly every test does.
pub async fn beside_others() -> Shared {
    MACHINE.read().await
}

/// Makes the test run alone: for tests that measure time, CPU or memory. Must be the first call of a test.
///
/// Under the test runner, the process of a test that is not alone ends here, and the runner starts it again when no
/// other test runs. Tests that run alone run one after another, so each of them makes the whole run longer.
pub async fn alone() -> Exclusive {
    if env::var(MODE).is_ok_and(|mode| mode == RUNS_SHARED) {
        process::exit(NEEDS_MACHINE);
    }
    MACHINE.write().await
}

/// Whether `make soak` runs the test. The long form of the test then replaces the short one of `make test`, with the
/// same assertions.
pub fn is_soak() -> bool {
    env::var_os("SOAK_MINUTES").is_some()
}

/// Reports that this test was skipped, with the reason. The test must return afterwards; the test runner counts it as
/// skipped.
///
/// Printed past the capture of output, so that `cargo test` shows it too.
pub fn skipped(cannot: &str, reason: impl Display) {
    // Always one line, because the runner reads lines.
    let reason = reason.to_string();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{SKIPPED}{cannot} here: {reason}\n");
    // If standard error is closed, the line is lost, which is no reason to fail.
    let _ = io::stderr().write_all(line.as_bytes());
}
