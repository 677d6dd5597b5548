//! What a test needs of the machine, and what it does where it cannot have it.
//!
//! The test runner gives each test a process of its own and runs several; `cargo test` runs several threads of one process. Both keep a
//! test that measures time or memory apart from others.

use std::{
    env,
    fmt::Display,
    io::{self, Write as _},
    process,
};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The variable by which the test runner says what runs beside a test: [`RUNS_SHARED`] or [`RUNS_ALONE`].
pub const MODE: &str = "FAIRMESH_TEST_RUN";
/// Other tests run.
pub const RUNS_SHARED: &str = "shared";
/// No other test runs.
pub const RUNS_ALONE: &str = "alone";
/// The exit code of a test that needs the machine for itself while others run; the test runner runs it again alone.
pub const NEEDS_MACHINE: i32 = 75;
/// The beginning of the line that a skipped test prints, before the reason.
pub const SKIPPED: &str = "skipped: ";

/// Within one process.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// Held by a test that runs beside others.
pub type Shared = RwLockReadGuard<'static, ()>;
/// Held by a test that no other test runs beside.
pub type Exclusive = RwLockWriteGuard<'static, ()>;

/// Runs beside other tests, as nearly every test does.
pub async fn beside_others() -> Shared {
    MACHINE.read().await
}

/// Runs with no other test beside: for tests that measure time, CPU or memory. The first thing that a test does.
///
/// Under the test runner, the process of a test that is not alone ends here, and the runner starts it again when no other test runs.
/// Tests that are alone run one after another, so each of them makes the whole run longer.
pub async fn alone() -> Exclusive {
    if env::var(MODE).is_ok_and(|mode| mode == RUNS_SHARED) {
        process::exit(NEEDS_MACHINE);
    }
    MACHINE.write().await
}

/// Whether `make soak` runs the test. Its long form then replaces the short one of `make test`, with the same assertions.
pub fn is_soak() -> bool {
    env::var_os("SOAK_MINUTES").is_some()
}

/// Says that this test was skipped, and why. The test returns after it; the test runner counts it as skipped.
///
/// Printed past the capture of output, so that `cargo test` shows it too.
pub fn skipped(cannot: &str, reason: impl Display) {
    // Always one line: the runner reads lines.
    let reason = reason.to_string();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{SKIPPED}{cannot} here: {reason}\n");
    // A closed standard error hides the line, and is no reason to fail.
    let _ = io::stderr().write_all(line.as_bytes());
}
