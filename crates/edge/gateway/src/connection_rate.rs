//! Limits the number of new connections per second, of a tenant or to a service.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// The generic cell rate algorithm (ITU-T I.371, annex A): it keeps one time, at which the next connection would begin if each
/// began as early as it may. After a quiet second, those of one second may begin at once.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRate {
    /// Connections per second; zero means unlimited.
    per_second: AtomicU32,
    next: Mutex<Option<Instant>>,
}

impl ConnectionRate {
    /// Changes the rate; `None` means unlimited.
    pub(crate) fn set(&self, per_second: Option<u32>) {
        self.per_second.store(per_second.unwrap_or_default(), Relaxed);
    }

    /// Whether a connection may begin now. If so, counts it.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let per_second = self.per_second.load(Relaxed);
        if per_second == 0 {
            return true;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (step, at) = (SECOND / per_second, next.map_or(now, |next| next.max(now)));
        let admits = at - now + step <= SECOND;
        if admits {
            *next = Some(at + step);
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_rate_admits_burst_of_one_second_then_steady_rate() {
        let (rate, now) = (ConnectionRate::default(), Instant::now());
        let admitted = |at| (0..10).filter(|_| rate.admits(at)).count();
        assert_eq!(admitted(now), 10, "without a quota");
        rate.set(Some(4));
        assert_eq!(admitted(now), 4);
        assert_eq!(admitted(now + SECOND / 4), 1);
        assert_eq!(admitted(now + SECOND * 9), 4, "quiet seconds do not add up");
        rate.set(None);
        assert_eq!(admitted(now), 10);
    }
}
