//! Divides a limit among demands: everyone gets up to an equal part, and the rest is divided in proportion.

use super::{ALL_PARTS, RESERVED};

/// Parts that are divided according to demand.
const DIVISIBLE: u64 = ALL_PARTS as u64 - RESERVED;

/// Division of a limit according to the demands of all callers at one moment.
///
/// If the limit suffices for all demands, it is divided in proportion to them. Otherwise each caller gets its demand
/// up to an equal part, and the rest is divided in proportion among callers with greater demand (the proportional
/// share of Google's Doorman). Dividing only in proportion was rejected: one caller with a large claim would take the
/// limit from all others.
#[derive(Debug, Default)]
pub(super) struct Division {
    whole: u64,
    callers: u64,
    demanded: u64,
    /// Parts left after each caller's equal part is served.
    left: u64,
    over: u64,
}

impl Division {
    /// Computes the division. `whole` and `demands` are in thousandths of calls per second.
    pub(super) fn of(demands: impl Iterator<Item = u64> + Clone, whole: u64) -> Self {
        let parts = demands.map(|demand| padded(demand, whole));
        let (callers, demanded) = parts.clone().fold((0, 0), |(n, sum), part| (n + 1, sum + part));
        let mut division = Self { whole, callers, demanded, left: 0, over: 0 };
        let equal: u64 = parts.map(|part| part.min(division.equal())).sum();
        division.left = DIVISIBLE.saturating_sub(equal);
        division.over = demanded - equal;
        division
    }

    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// Part of a caller with this demand.
    pub(super) fn share(&self, demand: u64) -> u64 {
        let part = padded(demand, self.whole);
        let share = match (self.demanded, self.over) {
            (0, _) => self.equal(),
            (demanded, _) if demanded <= DIVISIBLE => proportion(DIVISIBLE, part, demanded),
            (_, over) => {
                let equal = part.min(self.equal());
                equal + proportion(self.left, part - equal, over)
            }
        };
        share.min(DIVISIBLE)
    }

    /// Share of a caller with this demand when `part` is divided without remainder among callers.
    pub(super) fn share_of(&self, demand: u64, part: u64) -> u64 {
        proportion(part, self.share(demand), DIVISIBLE)
    }

    fn equal(&self) -> u64 {
        DIVISIBLE / self.callers.max(1)
    }
}

/// Part needed for a demand plus one eighth, because calls arrive unevenly. At most the whole limit.
fn padded(demand: u64, whole: u64) -> u64 {
    let all = u128::from(ALL_PARTS);
    // At most `ALL_PARTS`.
    (u128::from(demand) * 9 * all / (8 * u128::from(whole.max(1)))).min(all) as u64
}

fn proportion(of: u64, part: u64, all: u64) -> u64 {
    let proportion = u128::from(of) * u128::from(part) / u128::from(all.max(1));
    u64::try_from(proportion).unwrap_or(of)
}
