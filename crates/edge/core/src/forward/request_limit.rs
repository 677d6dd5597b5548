//! A limit of concurrent requests shared by many connections, such as all connections of one tenant.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use fairmesh_calls::{Fault, FaultKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{counter::increment, listen::accept::connection_limit};

/// Counts requests in flight. Over HTTP/2 each stream counts. A request is in flight until its response has ended; an
/// upgrade, until the upgraded connection has ended.
#[derive(Debug)]
pub struct RequestLimit {
    permits: Arc<Semaphore>,
    max: AtomicUsize,
    /// Name of the option that sets the limit, for messages.
    option: &'static str,
    refused: AtomicU64,
}

impl RequestLimit {
    /// A limit of `max` requests, at least one. `option` names the option that sets it.
    pub fn new(max: usize, option: &'static str) -> Arc<Self> {
        // The permits only count, so that the maximum may change while requests are in flight.
        let permits = connection_limit(Semaphore::MAX_PERMITS);
        Arc::new(Self { max: AtomicUsize::new(max.max(1)), permits, option, refused: AtomicU64::new(0) })
    }

    /// Changes the limit for requests that begin from now on.
    pub fn set_max(&self, max: usize) {
        self.max.store(max.max(1), Relaxed);
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> u64 {
        (Semaphore::MAX_PERMITS - self.permits.available_permits()) as u64
    }

    /// Number of requests that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Takes the permit of a request.
    ///
    /// # Errors
    /// [`FaultKind::RateLimited`] at the limit. The refusal is counted.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let max = self.max.load(Relaxed);
        // The request's own permit is counted too, so that concurrent requests cannot exceed the limit
        // together.
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        permit.filter(|_| self.in_flight() <= max as u64).ok_or_else(|| {
            increment(&self.refused);
            let option = self.option;
            let message = format!(
                "the tenant has {max} requests in flight, its maximum at this gateway ({option}, or 'requests' of its GatewayQuota); retry when some have ended"
            );
            Fault::new(FaultKind::RateLimited, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_over_concurrency_limit_is_refused_until_another_ends() {
        let limit = RequestLimit::new(1, "--max-tenant-requests");
        let first = limit.enter().unwrap();
        let fault = limit.enter().unwrap_err();
        assert_eq!((fault.kind(), limit.in_flight(), limit.refused()), (FaultKind::RateLimited, 1, 1));
        assert!(fault.to_string().contains("--max-tenant-requests"), "{fault}");
        limit.set_max(2);
        let second = limit.enter().unwrap();
        limit.set_max(1);
        drop(second);
        assert!(limit.enter().is_err(), "the first is still in flight");
        drop(first);
        assert!(limit.enter().is_ok());
    }
}
