use fairmesh_model::{Invalid, arith::Generator};
use serde::{Deserialize, Serialize};

use super::{SimTime, within_range};
use crate::sampling::{exp, exponential, normal, unit};

/// A distribution of times.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Distribution {
    /// Constant.
    Fixed(SimTime),
    /// Exponential, with this mean.
    Exponential(SimTime),
    /// Lognormal: many short, a few very long.
    Lognormal {
        /// The mean.
        mean: SimTime,
        /// The standard deviation of the logarithm; 1 is usual, 2 is extreme.
        sigma: f64,
    },
    /// A mixture of two exponential distributions.
    Bimodal {
        /// Mean of the usual distribution.
        usual: SimTime,
        /// Mean of the rare distribution.
        rare: SimTime,
        /// Share of the rare distribution.
        share: f64,
    },
}

impl Distribution {
    /// Samples a time in nanoseconds.
    #[inline]
    pub(crate) fn sample(&self, random: &mut Generator) -> f64 {
        match *self {
            Self::Fixed(span) => span.nanos() as f64,
            Self::Exponential(mean) => exponential(random) * mean.nanos() as f64,
            Self::Lognormal { mean, sigma } => {
                exp(sigma * normal(random) - sigma * sigma / 2.0) * mean.nanos() as f64
            }
            Self::Bimodal { usual, rare, share } => {
                let mean = if unit(random) < share { rare } else { usual };
                exponential(random) * mean.nanos() as f64
            }
        }
    }

    /// The mean in nanoseconds.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Fixed(mean) | Self::Exponential(mean) | Self::Lognormal { mean, .. } => mean.nanos() as f64,
            Self::Bimodal { usual, rare, share } => {
                usual.nanos() as f64 * (1.0 - share) + rare.nanos() as f64 * share
            }
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match *self {
            Self::Fixed(_) | Self::Exponential(_) => Ok(()),
            Self::Lognormal { sigma, .. } => within_range("lognormal.sigma", sigma, 0.0, 4.0),
            Self::Bimodal { share, .. } => within_range("bimodal.share", share, 0.0, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_samples_have_configured_mean() {
        let mean = SimTime::micros(10_000);
        let rare = SimTime::micros(100_000);
        for draw in [
            Distribution::Fixed(mean),
            Distribution::Exponential(mean),
            Distribution::Lognormal { mean, sigma: 1.0 },
            Distribution::Bimodal { usual: mean, rare, share: 0.1 },
        ] {
            let mut random = Generator::new(3);
            let drawn = (0..400_000).map(|_| draw.sample(&mut random)).sum::<f64>() / 400_000.0;
            assert!((drawn / draw.mean() - 1.0).abs() < 0.02, "{draw:?}: {drawn} instead of {}", draw.mean());
        }
    }
}
