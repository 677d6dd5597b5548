use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use tokio_util::sync::CancellationToken;

/// A connection that has taken back so many requests, and more than half of all, is cut off. Below, it is a program that
/// changes its mind; above, one that has servers work for nothing, as it costs itself next to nothing (CVE-2023-44487). What
/// is taken back before anybody looked at it is counted where it comes.
const MOST: u32 = 256;

/// What a connection's program did with its requests.
#[derive(Debug, Default)]
pub(crate) struct Restless {
    begun: AtomicU32,
    taken_back: AtomicU32,
    enough: CancellationToken,
}

/// A request that waits for the head of its answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    of: Arc<Restless>,
    answered: bool,
}

impl Restless {
    /// Counts a request.
    pub(crate) fn begin(self: &Arc<Self>) -> Waiting {
        self.begun.fetch_add(1, Relaxed);
        Waiting { of: Arc::clone(self), answered: false }
    }

    /// Waits until too many were taken back.
    pub(crate) async fn enough(&self) {
        self.enough.cancelled().await;
    }
}

impl Waiting {
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let taken_back = self.of.taken_back.fetch_add(1, Relaxed) + 1;
        if taken_back >= MOST && taken_back > self.of.begun.load(Relaxed) / 2 {
            self.of.enough.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(answered: u32, taken_back: u32) -> bool {
        let restless = Arc::<Restless>::default();
        (0..answered).for_each(|_| restless.begin().answered());
        (0..taken_back).for_each(|_| drop(restless.begin()));
        restless.enough.is_cancelled()
    }

    #[test]
    fn who_takes_back_most_of_many_requests_is_restless() {
        assert!(!after(0, MOST - 1) && after(0, MOST));
        assert!(!after(2 * MOST, 2 * MOST) && after(2 * MOST, 2 * MOST + 1));
    }
}
