//! Outages of hosts and shared services, with real processes in network namespaces, while writers, watchers and callers
//! run. All observations are checked as one history.
//!
//! The short form causes each fault once. `SOAK_MINUTES` selects the long form: longer faults in repeated random
//! orders, which `SOAK_SEED` reproduces, with the same assertions. `OUTAGES` selects faults by parts of their names.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod checker;
mod faults;
mod harness;
mod zone_probes;

use std::{
    env,
    time::{Duration, UNIX_EPOCH},
};

use checker::planted::each_is_found;
use fairmesh_model::arith::mix64;
use fairmesh_test_support::skipped;
use faults::{FAULTS, Fault, LONG_FAULTS};
use harness::{Suite, now};

#[test]
fn outages_lose_no_write_no_order_no_call() {
    let minutes: Option<u64> =
        env::var("SOAK_MINUTES").ok().map(|minutes| minutes.parse().expect("SOAK_MINUTES: a number"));
    let suite = match Suite::start(minutes.is_some()) {
        Ok(suite) => suite,
        Err(reason) => return skipped("hosts cannot be made", reason),
    };
    let named = env::var("OUTAGES").unwrap_or_default();
    let more = if minutes.is_some() { LONG_FAULTS } else { &[] };
    let faults: Vec<Fault> = FAULTS
        .iter()
        .chain(more)
        .filter(|(name, _)| named.split(',').any(|part| name.contains(part)))
        .copied()
        .collect();
    if let Some(minutes) = minutes {
        return soak(&suite, faults, Duration::from_secs(60 * minutes));
    }
    for (number, (name, fault)) in faults.iter().enumerate() {
        let history = suite.run(name, fault);
        // Once is enough to show that the checker would find each bug.
        if number == 0 {
            each_is_found(&history);
        }
    }
}

/// Causes all faults in one random order after another until the time is over.
fn soak(suite: &Suite, mut faults: Vec<Fault>, time: Duration) {
    let began = now();
    let mut seed =
        env::var("SOAK_SEED").map_or_else(|_| seed(), |seed| seed.parse().expect("SOAK_SEED: a number"));
    println!("SOAK_SEED={seed} repeats the order");
    while began.elapsed() < time {
        faults.sort_by_cached_key(|_| {
            seed = mix64(seed.wrapping_add(1));
            seed
        });
        for (name, fault) in faults.iter().take_while(|_| began.elapsed() < time) {
            suite.run(name, fault);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "each run has another order; the seed is printed")]
fn seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs()
}
