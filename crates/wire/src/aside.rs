//! Work that takes long, away from the loops that serve.

use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::Status;

/// How much of it runs at once: beside it the process goes on serving, and its memory stays bounded.
static ASIDE: Semaphore = Semaphore::const_new(2);

/// Runs `work`, such as compiling a policy, on a thread of its own; others wait for a place.
///
/// # Errors
/// When the process stops meanwhile.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let stopped = || Status::unavailable("the process is stopping; try again");
    let place = ASIDE.acquire().await.map_err(|_| stopped())?;
    // The work goes on if its caller goes away, and keeps its place until it has ended.
    let work = move || {
        let _place = place;
        work()
    };
    spawn_blocking(work).await.map_err(|_| stopped())
}
