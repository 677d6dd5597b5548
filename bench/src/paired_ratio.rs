//! Median and confidence bounds of the ratios of paired rounds.

use std::fmt;

/// A geometric mean with its confidence bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ratio {
    /// Geometric mean over rounds.
    pub(crate) mean: f64,
    /// Factor of the confidence bounds in either direction: two standard errors, 95 % confidence.
    pub(crate) within: f64,
}

impl Ratio {
    /// Summarises the ratios of several rounds. Without rounds, the result is NaN.
    pub(crate) fn of(ratios: &[f64]) -> Self {
        let count = ratios.len() as f64;
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count;
        let variance = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Self { mean: mean.exp(), within: (2.0 * (variance / count).sqrt()).exp() }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.mean, self.mean / self.within, self.mean * self.within)
    }
}

/// A median with 95 % confidence bounds, which are values of rounds. Valid for any distribution of independent rounds:
/// with noisy neighbours on the machine, some rounds are far off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    /// Median over rounds.
    pub(crate) value: f64,
    least: f64,
    most: f64,
}

impl Median {
    /// Summarises the ratios of several rounds. `None` without rounds.
    pub(crate) fn of(ratios: &[f64]) -> Option<Self> {
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        // The number of values below the median is binomial; this is its normal approximation, less one half as
        // continuity correction.
        let beyond = ((count as f64 - 1.0 - 1.96 * (count as f64).sqrt()) / 2.0).max(0.0) as usize;
        let (least, most) = match beyond {
            0 => (first, last),
            _ => (sorted[beyond], sorted[count - 1 - beyond]),
        };
        Some(Self { value: f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]), least, most })
    }
}

impl fmt::Display for Median {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.value, self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::arith::Generator;

    use super::*;

    #[test]
    fn outlier_rounds_do_not_move_median_ratio() {
        let rounds: Vec<f64> =
            (0..25).map(|round| if round % 5 == 0 { 9.0 } else { 0.5 + f64::from(round) / 100.0 }).collect();
        let median = Median::of(&rounds).unwrap();
        assert!((0.6..0.7).contains(&median.value) && median.most < 1.0 && median.least > 0.5, "{median}");
        assert_eq!(Median::of(&[]), None);
        assert_eq!(Median::of(&[3.0, 1.0]), Some(Median { value: 2.0, least: 1.0, most: 3.0 }));
    }

    /// Over many samples with a known median, the bounds contain the median as often as promised.
    #[test]
    fn median_confidence_bounds_hold_in_19_of_20_samples() {
        let mut chance = Generator::new(7);
        let mut one = || chance.below(1 << 20) as f64;
        for (rounds, least) in [(9, 945), (50, 950)] {
            let held = (0..1000).filter(|_| {
                let median = Median::of(&(0..rounds).map(|_| one()).collect::<Vec<_>>()).unwrap();
                (median.least..=median.most).contains(&f64::from(1 << 19))
            });
            let held = held.count();
            assert!((least..=990).contains(&held), "{held} of 1000 with {rounds} rounds");
        }
    }

    #[test]
    fn outlier_round_widens_confidence_bounds_more_than_it_moves_mean() {
        let steady = Ratio::of(&[1.0; 100]);
        assert_eq!(steady, Ratio { mean: 1.0, within: 1.0 });
        let mut rounds = [1.0; 100];
        rounds[7] = 30.0;
        let astray = Ratio::of(&rounds);
        assert!((1.03..1.04).contains(&astray.mean), "{astray}");
        assert!(astray.mean / astray.within < 1.0, "{astray}");
    }

    #[test]
    fn paired_ratio_detects_consistently_slower_side() {
        let rounds: Vec<f64> = (0..100).map(|round| 1.2 + f64::from(round % 5) / 100.0).collect();
        let ratio = Ratio::of(&rounds);
        assert!(ratio.mean / ratio.within > 1.2, "{ratio}");
    }
}
