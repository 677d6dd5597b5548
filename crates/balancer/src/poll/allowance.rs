use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Tries that pay for one question.
const TRIES: u32 = 10;
/// How many questions' worth of tries may be saved up: those of two surveys.
const SAVED: u32 = 4;

/// A token bucket that keeps questions a share of tries: one in ten, however many callers there are.
///
/// It begins empty, so that there are never more. While it is full a try writes nothing: where tries are frequent, it is full.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    tries: AtomicU32,
}

impl Allowance {
    /// A try was made; whether tries have paid for a question now.
    #[inline]
    pub(super) fn earn(&self) -> bool {
        let mut tries = self.tries.load(Relaxed);
        if tries < SAVED * TRIES {
            tries = self.tries.fetch_add(1, Relaxed) + 1;
        }
        tries >= TRIES
    }

    /// Takes one question out; `false` where there is none.
    pub(super) fn spend(&self) -> bool {
        self.tries.fetch_update(Relaxed, Relaxed, |tries| tries.checked_sub(TRIES)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_stay_a_share_of_tries() {
        let allowance = Allowance::default();
        let asked = |tries: u32| {
            (0..tries)
                .filter(|_| {
                    allowance.earn();
                    allowance.spend()
                })
                .count()
        };
        assert_eq!(asked(9), 0, "nothing is given in advance");
        assert_eq!(asked(1), 1);
        assert_eq!(asked(1000), 100);
        let paid = (1..=1000).filter(|_| allowance.earn()).min();
        assert_eq!(paid, Some(10), "it says when it is worth to look");
        assert_eq!((0..1000).filter(|_| allowance.spend()).count(), 4, "savings are bounded");
    }
}
