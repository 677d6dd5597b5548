use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Tries that pay for one question.
const TRIES: u32 = 10;
/// How many questions' worth of tries may be saved up: those of two surveys.
const SAVED: u32 = 4;

/// A token bucket that keeps questions a share of tries: one in ten, however many callers there are.
///
/// It begins empty, so that there are never more. While it is full a try writes nothing: where tries are frequent, it is full.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    tries: AtomicU32,
}

impl Allowance {
    /// A try was made.
    #[inline]
    pub(super) fn earn(&self) {
        if self.tries.load(Relaxed) < SAVED * TRIES {
            self.tries.fetch_add(1, Relaxed);
        }
    }

    /// Takes one question out; `false` where there is none.
    pub(crate) fn spend(&self) -> bool {
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
        (0..1000).for_each(|_| allowance.earn());
        assert_eq!((0..1000).filter(|_| allowance.spend()).count(), 4, "savings are bounded");
    }
}
