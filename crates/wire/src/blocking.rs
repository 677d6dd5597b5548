//! Expensive work, off the event loops that serve connections.

use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::Status;

/// Concurrent work: the process keeps serving meanwhile, and its memory stays bounded.
static BLOCKING: Semaphore = Semaphore::const_new(2);

/// Runs `work`, such as compiling a policy, on a blocking thread; further work waits for a permit.
///
/// # Errors
/// If the process stops meanwhile.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let stopped = || Status::unavailable("the process is stopping; retry");
    let permit = BLOCKING.acquire().await.map_err(|_| stopped())?;
    // The work continues if its caller is dropped, and holds its permit until it ends.
    let work = move || {
        let _permit = permit;
        work()
    };
    spawn_blocking(work).await.map_err(|_| stopped())
}
