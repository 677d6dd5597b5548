//! Runs expensive work outside the event loops that serve connections.

use std::time::Duration;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
    time::timeout,
};
use tonic::Status;

use crate::transport::Waits;

/// Permits for concurrent work. The limit keeps the process responsive and its memory bounded.
static BLOCKING: Semaphore = Semaphore::const_new(2);

/// Maximum number of one connection's requests that wait for a permit. Permits are granted in order of arrival, so
/// one connection must not fill the queue.
const MAX_QUEUED: u32 = 16;

/// Maximum time to wait for a permit.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Runs expensive work of a request, such as compiling a policy, on a blocking thread. Further work waits for a
/// permit.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if too many requests wait, `DEADLINE_EXCEEDED` after 30 s, and `UNAVAILABLE` if the process
/// stops in the meantime.
pub async fn run_blocking<T: Send + 'static>(
    waits: &Waits,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let permit = match BLOCKING.try_acquire() {
        Ok(permit) => permit,
        Err(_) => wait_for_permit(waits).await?,
    };
    // The work continues if its caller is dropped, and holds its permit until it ends.
    let work = move || {
        let _permit = permit;
        work()
    };
    spawn_blocking(work).await.map_err(|_| stopped())
}

async fn wait_for_permit(waits: &Waits) -> Result<SemaphorePermit<'static>, Status> {
    let _place = waits.queue(MAX_QUEUED)?;
    match waits.run(timeout(MAX_WAIT, BLOCKING.acquire())).await? {
        Ok(permit) => permit.map_err(|_| stopped()),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "this process validates costly requests of others and did not begin with this one within {MAX_WAIT:?}; \
             retry later"
        ))),
    }
}

fn stopped() -> Status {
    Status::unavailable("the process is stopping; retry")
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use fairmesh_listen::{Acceptor, Limits, Memory, RequestGuard};
    use futures_util::future::join_all;
    use http::Extensions;
    use tokio::{io::duplex, time::Instant};
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blocking_work_queues_few_requests_per_connection_for_limited_time() {
        let acceptor = Acceptor::new("test", Limits::calls(), Memory::default());
        let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
        let mut extensions = Extensions::new();
        extensions.insert(RequestGuard::new(stream.connection().unwrap()));
        let waits = Waits::of_http(&extensions);

        let busy = BLOCKING.acquire_many(2).await.unwrap();
        let began = Instant::now();
        let requests = (0..=MAX_QUEUED).map(|_| run_blocking(&waits, || ()));
        let codes = join_all(requests).await.into_iter().map(|ran| ran.unwrap_err().code());
        let mut expected = vec![Code::DeadlineExceeded; MAX_QUEUED as usize];
        expected.push(Code::ResourceExhausted);
        assert_eq!(codes.collect::<Vec<_>>(), expected);
        assert_eq!(began.elapsed(), MAX_WAIT);
        drop(busy);
        assert!(run_blocking(&waits, || ()).await.is_ok(), "its places are free again");
    }
}
