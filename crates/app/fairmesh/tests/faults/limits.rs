//! What a peer can cost the processes of the mesh: connections, descriptors, time and memory. During each attack,
//! honest calls must not fail.

mod fleet;
mod headers;
mod prefixes;
mod refused;
mod slow;
mod table;
mod unfinished;
mod unread;
mod waiting;

use std::{future::Future, time::Duration};

use tokio::time::Instant;

pub(crate) use fleet::Fleet;

/// Number of calls whose latencies are compared.
const CALLS: usize = 200;
/// Latencies below this count as equal, since the machine also does other work.
const FLOOR: Duration = Duration::from_millis(40);

/// p99 latency of sequential calls; panics if a call fails.
async fn p99<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    mut call: impl FnMut() -> F,
) -> Duration {
    let mut took = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let began = Instant::now();
        call().await.unwrap();
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took[CALLS * 99 / 100]
}

/// Asserts that calls became at most twice as slow.
#[track_caller]
fn is_unharmed(what: &str, before: Duration, meanwhile: Duration) {
    let bound = 2 * before.max(FLOOR);
    assert!(meanwhile <= bound, "p99 of {what} was {before:?} and is {meanwhile:?}");
}
