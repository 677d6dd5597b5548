//! The limit of requests in flight of many connections together, such as those of one tenant.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_calls::{Fault, FaultKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{counter::increment, listen::accept::connection_limit};

/// Requests in flight, over HTTP/2 as many as there are streams. A request is in flight until its response has ended.
#[derive(Debug)]
pub struct RequestLimit {
    permits: Arc<Semaphore>,
    max: usize,
    /// The option that sets the limit, for messages.
    option: &'static str,
    refused: AtomicU64,
}

impl RequestLimit {
    /// A limit of `max` requests, at least one, which `option` sets.
    pub fn new(max: usize, option: &'static str) -> Arc<Self> {
        let permits = connection_limit(max);
        Arc::new(Self { max: permits.available_permits(), permits, option, refused: AtomicU64::new(0) })
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> u64 {
        (self.max - self.permits.available_permits()) as u64
    }

    /// Number of requests that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// The permit of a request.
    ///
    /// # Errors
    /// [`FaultKind::RateLimited`] at the limit, which is counted.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, Fault> {
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            increment(&self.refused);
            let Self { max, option, .. } = self;
            let message = format!(
                "the tenant has {max} requests in flight, its maximum at this gateway ({option}); retry when some have ended"
            );
            Fault::new(FaultKind::RateLimited, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_beyond_the_limit_is_refused_until_another_ends() {
        let limit = RequestLimit::new(1, "--max-tenant-requests");
        let first = limit.enter().unwrap();
        let fault = limit.enter().unwrap_err();
        assert_eq!((fault.kind(), limit.in_flight(), limit.refused()), (FaultKind::RateLimited, 1, 1));
        assert!(fault.to_string().contains("--max-tenant-requests"), "{fault}");
        drop(first);
        assert!(limit.enter().is_ok());
    }
}
