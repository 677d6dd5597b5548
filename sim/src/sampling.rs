//! Samples from distributions, identical on every machine: IEEE 754 additions, multiplications and square roots are
//! exact to the bit everywhere, C library functions are not.

use std::f64::consts::LN_2;

use fairmesh_model::arith::{Generator, LOG_BITS, log2};

/// An exponentially distributed number with mean 1: the interarrival time of a Poisson process.
#[inline]
pub(crate) fn exponential(random: &mut Generator) -> f64 {
    minus_ln(random.next())
}

/// A uniform number from 0 up to 1.
#[inline]
pub(crate) fn unit(random: &mut Generator) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number from the standard normal distribution (Marsaglia's polar method, which needs no sine).
pub(crate) fn normal(random: &mut Generator) -> f64 {
    loop {
        let (x, y) = (2.0 * unit(random) - 1.0, 2.0 * unit(random) - 1.0);
        let s = x * x + y * y;
        if s > 0.0 && s < 1.0 {
            // The logarithm takes 64 bits of a number in (0, 1).
            let log = minus_ln((s * (1_u64 << 53) as f64) as u64 * 2048);
            return x * (2.0 * log / s).sqrt();
        }
    }
}

/// `-ln(x / 2^64)`.
#[inline]
fn minus_ln(x: u64) -> f64 {
    ((64_u64 << LOG_BITS) - log2(x)) as f64 * (LN_2 / (1_u64 << LOG_BITS) as f64)
}

/// Natural logarithm of a number from 2^-31 to 2^31: that of the fraction plus that of the power of two.
pub(crate) fn ln(x: f64) -> f64 {
    let power = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let fraction = f64::from_bits((x.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    let log = log2((fraction * (1_u64 << 32) as f64) as u64) as f64 / (1_u64 << LOG_BITS) as f64 - 32.0;
    (log + power as f64) * LN_2
}

/// e to the power of `x`, for |x| below 700: a Taylor series after taking out a power of two.
pub(crate) fn exp(x: f64) -> f64 {
    let whole = (x / LN_2).round();
    let rest = x - whole * LN_2;
    let (mut sum, mut term) = (1.0, 1.0);
    for i in 1..16 {
        term *= rest / f64::from(i);
        sum += term;
    }
    sum * f64::from_bits(((1023 + whole as i64) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(draws: impl Iterator<Item = f64>) -> f64 {
        let draws: Vec<f64> = draws.collect();
        draws.iter().sum::<f64>() / draws.len() as f64
    }

    #[test]
    fn random_samples_have_moments_of_their_distributions() {
        let mut random = Generator::new(1);
        let exponentials: Vec<f64> = (0..200_000).map(|_| exponential(&mut random)).collect();
        assert!((mean(exponentials.iter().copied()) - 1.0).abs() < 0.01);
        assert!((mean(exponentials.iter().map(|x| x * x)) - 2.0).abs() < 0.05);
        let normals: Vec<f64> = (0..200_000).map(|_| normal(&mut random)).collect();
        assert!(mean(normals.iter().copied()).abs() < 0.01);
        assert!((mean(normals.iter().map(|x| x * x)) - 1.0).abs() < 0.01);
        assert!((mean(normals.iter().map(|x| x * x * x * x)) - 3.0).abs() < 0.1);
    }

    #[test]
    fn portable_exp_and_ln_match_std_within_tolerance() {
        for x in [-20.0, -1.0, -0.3, 0.0, 0.5, 1.0, 3.7, 40.0_f64] {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-12, "{x}");
        }
        for x in [1e-6, 0.3, 1.0, 2.5, 90_000.0_f64] {
            assert!((ln(x) - x.ln()).abs() < 1e-5, "{x}");
        }
    }
}
