use fairmesh_model::{Label, Region, RegionShares, Share, TrafficShares};

/// All shares of one class together: shares are in ten-thousandths.
pub const WHOLE: u32 = 10_000;
/// The least share: a smaller one would keep connections that hardly any call uses.
pub const MIN_SHARE: u32 = 100;
/// Millionths in a ten-thousandth.
pub const MILLIONTHS: u32 = 100;

/// The tables of one service, of one plan; by source region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Tables {
    /// By source region.
    pub sources: Vec<RegionTable>,
}

/// The table of one source region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct RegionTable {
    /// By class.
    pub classes: Vec<ClassShares>,
}

/// Where the calls of one source region and class go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ClassShares {
    /// By destination region, in ten-thousandths: 0, or at least [`MIN_SHARE`].
    pub shares: Vec<u32>,
    /// The share that fails at once, in ten-thousandths. With the others it sums to [`WHOLE`].
    pub dropped: u32,
}

impl Tables {
    /// All calls stay in their region.
    pub fn local(regions: usize, classes: usize) -> Self {
        let source = |home| RegionTable { classes: vec![ClassShares::only(regions, home); classes] };
        Self { sources: (0..regions).map(source).collect() }
    }

    /// Whether any calls are dropped.
    pub fn drops(&self) -> bool {
        self.sources.iter().flat_map(|source| &source.classes).any(|class| class.dropped > 0)
    }

    /// The shares of a source region and class.
    pub fn of(&self, source: usize, class: usize) -> &ClassShares {
        &self.sources[source].classes[class]
    }
}

impl RegionTable {
    /// The shares as a record has them: those of the first class are of all calls without a class of their own, the others
    /// those of `classes`.
    pub fn to_shares(&self, regions: &[Region], classes: &[Label]) -> TrafficShares {
        let mut rows = self.classes.iter().map(|class| class.to_shares(regions));
        TrafficShares { default: rows.next(), classes: classes.iter().cloned().zip(rows).collect() }
    }
}

impl ClassShares {
    fn to_shares(&self, regions: &[Region]) -> RegionShares {
        // A planner's shares are at most all calls.
        let share = |of_whole: u32| Share::of_millionths(of_whole * MILLIONTHS).unwrap_or(Share::ALL);
        let to = regions.iter().zip(&self.shares).filter(|(_, of_whole)| **of_whole > 0);
        RegionShares {
            to: to.map(|(region, of_whole)| (region.clone(), share(*of_whole))).collect(),
            dropped: share(self.dropped),
        }
    }

    fn only(regions: usize, to: usize) -> Self {
        let shares = (0..regions).map(|region| if region == to { WHOLE } else { 0 }).collect();
        Self { shares, dropped: 0 }
    }

    /// Rounds shares that sum to about 1. What the shares below the least one and rounding leave goes to `fallback`, or
    /// to the greatest share where that would be too little for the fallback.
    pub(crate) fn round(shares: &[f64], dropped: f64, fallback: usize) -> Self {
        let whole = f64::from(WHOLE);
        // Rounding down leaves a rest that is never negative.
        let round = |share: f64| {
            let share = (share * whole + 1e-6).floor().clamp(0.0, whole) as u32;
            if share < MIN_SHARE { 0 } else { share }
        };
        let mut rounded: Vec<u32> = shares.iter().map(|share| round(*share)).collect();
        let dropped = round(dropped);
        let rest = WHOLE.saturating_sub(dropped + rounded.iter().sum::<u32>());
        let greatest = (0..rounded.len()).rev().max_by_key(|at| rounded[*at]).unwrap_or(fallback);
        if rounded[fallback] + rest >= MIN_SHARE {
            rounded[fallback] += rest;
        } else if rounded[greatest] > 0 {
            rounded[greatest] += rest;
        } else {
            return Self { shares: rounded, dropped: dropped + rest };
        }
        Self { shares: rounded, dropped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_moves_tiny_shares_to_fallback_region_and_keeps_sum() {
        let rounded = ClassShares::round(&[0.95, 0.04, 0.006], 0.004, 0);
        assert_eq!(rounded, ClassShares { shares: vec![9600, 400, 0], dropped: 0 });
        let rounded = ClassShares::round(&[0.0, 0.333_33, 0.666_67], 0.0, 1);
        assert_eq!(rounded.shares, [0, 3334, 6666]);
        let rounded = ClassShares::round(&[0.005, 0.0], 0.995, 0);
        assert_eq!(rounded, ClassShares { shares: vec![0, 0], dropped: WHOLE });
    }
}
