//! Outages of whole machines and of what they share, as real processes in network namespaces, while writers write, watchers
//! watch and programs call. Everything that was seen is checked as one history.
//!
//! The short form does each fault once. `SOAK_MINUTES` makes it a long one: faults in a random order that a seed repeats
//! (`SOAK_SEED`), each lasting longer, with the same assertions.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod checker;
mod faults;
mod harness;

use faults::FAULTS;
use harness::Suite;

/// How much longer an outage lasts in the long form.
const LONG: u32 = 10;

#[test]
fn no_outage_loses_a_write_takes_anybody_back_or_fails_a_call() {
    let suite = match Suite::start(1) {
        Ok(suite) => suite,
        Err(reason) => return skipped(&reason),
    };
    let only = std::env::var("OUTAGES").unwrap_or_default();
    for (name, fault) in FAULTS.iter().filter(|(name, _)| name.contains(&only)) {
        suite.run(name, fault);
    }
}

/// Says so past the capture of what passing tests print.
fn skipped(reason: &str) {
    use std::io::Write;
    let line = format!("skipped: hosts cannot be made here: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
