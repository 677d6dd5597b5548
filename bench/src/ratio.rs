//! What ratios of paired rounds come to.

use std::fmt;

/// A geometric mean, and between which bounds it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ratio {
    /// The geometric mean over rounds.
    pub(crate) mean: f64,
    /// By which factor either way it may be off: two standard errors, within which it lies 19 times in 20.
    pub(crate) within: f64,
}

impl Ratio {
    /// What the ratios of several rounds come to; those of none are nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_went_astray_widens_the_bounds_more_than_it_moves_the_mean() {
        let steady = Ratio::of(&[1.0; 100]);
        assert_eq!(steady, Ratio { mean: 1.0, within: 1.0 });
        let mut rounds = [1.0; 100];
        rounds[7] = 30.0;
        let astray = Ratio::of(&rounds);
        assert!((1.03..1.04).contains(&astray.mean), "{astray}");
        assert!(astray.mean / astray.within < 1.0, "{astray}");
    }

    #[test]
    fn what_is_slower_in_every_round_shows() {
        let rounds: Vec<f64> = (0..100).map(|round| 1.2 + f64::from(round % 5) / 100.0).collect();
        let ratio = Ratio::of(&rounds);
        assert!(ratio.mean / ratio.within > 1.2, "{ratio}");
    }
}
