use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Tries that pay for one question.
const ATTEMPTS_PER_POLL: u32 = 10;
/// How many questions' worth of tries may be saved up: those of two surveys.
const MAX_SAVED_POLLS: u32 = 4;

/// A token bucket that keeps questions a share of tries: one in ten, however many callers there are.
///
/// It begins empty, so that there are never more. While it is full a try writes nothing: where tries are frequent, it is full.
#[derive(Debug, Default)]
pub(super) struct PollBudget {
    attempts: AtomicU32,
}

impl PollBudget {
    /// A try was made; whether tries have paid for a question now.
    #[inline]
    pub(super) fn deposit(&self) -> bool {
        let mut attempts = self.attempts.load(Relaxed);
        if attempts < MAX_SAVED_POLLS * ATTEMPTS_PER_POLL {
            attempts = self.attempts.fetch_add(1, Relaxed) + 1;
        }
        attempts >= ATTEMPTS_PER_POLL
    }

    /// Takes one question out; `false` where there is none.
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
    fn polls_stay_a_tenth_of_attempts() {
        let budget = PollBudget::default();
        let polls = |attempts: u32| {
            (0..attempts)
                .filter(|_| {
                    budget.deposit();
                    budget.withdraw()
                })
                .count()
        };
        assert_eq!(polls(9), 0, "nothing is given in advance");
        assert_eq!(polls(1), 1);
        assert_eq!(polls(1000), 100);
        let first_paid = (1..=1000).filter(|_| budget.deposit()).min();
        assert_eq!(first_paid, Some(10), "it says when it is worth to look");
        assert_eq!((0..1000).filter(|_| budget.withdraw()).count(), 4, "savings are bounded");
    }
}
