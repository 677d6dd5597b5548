use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of attempts that pay for one poll.
const ATTEMPTS_PER_POLL: u32 = 10;
/// Maximum number of saved polls: two rounds.
const MAX_SAVED_POLLS: u32 = 4;

/// A token bucket that limits polls to a fraction of the attempts: one in ten, however many callers there are.
///
/// The bucket starts empty, so that the limit always holds. While it is full, as with frequent attempts, an attempt
/// writes nothing.
#[derive(Debug, Default)]
pub(super) struct PollBudget {
    attempts: AtomicU32,
}

impl PollBudget {
    /// Counts an attempt. Returns whether the budget allows a poll.
    #[inline]
    pub(super) fn deposit(&self) -> bool {
        let mut attempts = self.attempts.load(Relaxed);
        if attempts < MAX_SAVED_POLLS * ATTEMPTS_PER_POLL {
            attempts = self.attempts.fetch_add(1, Relaxed) + 1;
        }
        attempts >= ATTEMPTS_PER_POLL
    }

    /// Takes a poll from the budget. Returns `false` if there is none.
    pub(super) fn withdraw(&self) -> bool {
        self.attempts
            .fetch_update(Relaxed, Relaxed, |attempts| attempts.checked_sub(ATTEMPTS_PER_POLL))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_polls_are_limited_to_tenth_of_attempts() {
        let budget = PollBudget::default();
        let polls = |attempts: u32| {
            (0..attempts)
                .filter(|_| {
                    budget.deposit();
                    budget.withdraw()
                })
                .count()
        };
        assert_eq!(polls(9), 0, "the budget starts empty");
        assert_eq!(polls(1), 1);
        assert_eq!(polls(1000), 100);
        let first_paid = (1..=1000).filter(|_| budget.deposit()).min();
        assert_eq!(first_paid, Some(10), "the deposit that allows a poll");
        assert_eq!((0..1000).filter(|_| budget.withdraw()).count(), 4, "savings are bounded");
    }
}
