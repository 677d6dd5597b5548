//! Equal parts for those who want them, and the rest in proportion.

use super::{ALL_PARTS, SPREAD};

/// What is divided by demand.
const DIVIDED: u64 = ALL_PARTS as u64 - SPREAD;

/// How the demands of all callers share a limit, at one moment.
///
/// Where there is enough, all of it is divided in proportion. Where there is not, each caller receives what it wants up to an equal
/// part, and what is left is divided in proportion among those who want more (the proportional share of Google's Doorman). In
/// proportion alone was rejected: one caller that claims much would take the limit from all others.
#[derive(Debug, Default)]
pub(super) struct Division {
    whole: u64,
    callers: u64,
    wanted: u64,
    /// What is left after equal parts, and how much more is wanted.
    left: u64,
    over: u64,
}

impl Division {
    /// Of these demands, in thousandths of calls a second as `whole`.
    pub(super) fn of(demands: impl Iterator<Item = u64> + Clone, whole: u64) -> Self {
        let wants = demands.map(|demand| want(demand, whole));
        let (callers, wanted) = wants.clone().fold((0, 0), |(n, sum), want| (n + 1, sum + want));
        let mut division = Self { whole, callers, wanted, left: 0, over: 0 };
        let equal: u64 = wants.map(|want| want.min(division.equal())).sum();
        division.left = DIVIDED.saturating_sub(equal);
        division.over = wanted - equal;
        division
    }

    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// The part of a caller with this demand.
    pub(super) fn share(&self, demand: u64) -> u64 {
        let want = want(demand, self.whole);
        let share = match (self.wanted, self.over) {
            (0, _) => self.equal(),
            (wanted, _) if wanted <= DIVIDED => portion(DIVIDED, want, wanted),
            (_, over) => {
                let equal = want.min(self.equal());
                equal + portion(self.left, want - equal, over)
            }
        };
        share.min(DIVIDED)
    }

    fn equal(&self) -> u64 {
        DIVIDED / self.callers.max(1)
    }
}

/// The part that a demand stands for, an eighth above it since calls do not come evenly; at most the whole.
fn want(demand: u64, whole: u64) -> u64 {
    let all = u128::from(ALL_PARTS);
    // At most ALL_PARTS.
    (u128::from(demand) * 9 * all / (8 * u128::from(whole.max(1)))).min(all) as u64
}

fn portion(of: u64, part: u64, all: u64) -> u64 {
    let portion = u128::from(of) * u128::from(part) / u128::from(all.max(1));
    u64::try_from(portion).unwrap_or(of)
}
