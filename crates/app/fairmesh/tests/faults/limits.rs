//! What a peer may cost the processes of the mesh: connections, descriptors, time and memory. Each attack runs beside honest calls,
//! of which none fails.

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

/// Calls whose times are compared.
const CALLS: usize = 200;
/// What takes less than this is as fast as anything, on a machine that does other things as well.
const FLOOR: Duration = Duration::from_millis(40);

/// The 99th percentile of the times of calls, one after the other, of which none fails.
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

/// Calls are at most twice as slow as they were.
#[track_caller]
fn is_unharmed(what: &str, before: Duration, meanwhile: Duration) {
    let bound = 2 * before.max(FLOOR);
    assert!(meanwhile <= bound, "p99 of {what} was {before:?} and is {meanwhile:?}");
}
