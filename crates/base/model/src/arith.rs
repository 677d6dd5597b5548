//! Integer arithmetic used by every decision: hash, random numbers, logarithm.
//!
//! All deployment forms must make the same decisions, and the kernel has no floating point, so nothing here uses
//! floating point. The documentation specifies each function to the last bit, with examples in `vectors/arith.json`.
//! Unsigned products and sums wrap around at 2^64 where the specification says so.

/// Increment of a [`Generator`]'s state per step: 2^64 divided by the golden ratio, rounded to an odd number.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits. Every input bit changes about half of the output bits (finaliser of SplitMix64, Steele et al.
/// 2014).
#[inline]
pub const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Mixes two numbers into one; their order matters: `mix64(mix64(a + GAMMA) ^ b)`.
#[inline]
pub const fn mix_pair(a: u64, b: u64) -> u64 {
    mix64(mix64(a.wrapping_add(GAMMA)) ^ b)
}

/// Hashes a text to 64 bits (XXH3 without seed). Names are hashed once, when they are read, and decisions use only
/// the hash.
#[inline]
pub fn hash_text(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// Hashes a 128-bit key: `mix_pair(high 64 bits, low 64 bits)`.
#[inline]
pub const fn hash_key(key: u128) -> u64 {
    mix_pair((key >> 64) as u64, key as u64)
}

/// A pseudo-random number generator that is determined by its seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// Creates a generator whose stream starts at `seed`.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 bits: adds [`GAMMA`] to the state and returns `mix64(state)`.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix64(self.state)
    }

    /// Returns the next number below `bound`: `floor(next * bound / 2^64)`, with a 128-bit product. Returns 0 if
    /// `bound` is 0.
    ///
    /// The bias is at most `bound / 2^64` per number. Rejection sampling was not used, since its cost and its
    /// position in the stream would depend on the numbers drawn.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}

/// Number of fractional bits in the result of [`log2`].
pub const LOG_BITS: u32 = 32;

/// `LOG_TABLE[i] = floor(log2(1 + i / 256) * 2^32)`.
pub const LOG_TABLE: [u64; 257] = log_table();

/// Logarithm to base 2, in units of 1/2^32. `log2(0)` is defined as `log2(1)`, which is 0.
///
/// Let `e` be the position of the highest set bit of `x`, `i` the 8 bits below that bit, and `r` the next 32 bits
/// (missing bits are 0). The result is `e * 2^32 + T[i] + floor((T[i + 1] - T[i]) * r / 2^32)`, where `T` is
/// [`LOG_TABLE`]. It is monotonic, and less than 2^-18 below the exact value.
#[inline]
pub const fn log2(x: u64) -> u64 {
    let x = if x == 0 { 1 } else { x };
    let zeros = x.leading_zeros();
    // Two shifts, since a shift by 64 is undefined.
    let fraction = (x << zeros) << 1;
    let i = (fraction >> 56) as usize;
    let r = (fraction << 8) >> 32;
    let low = LOG_TABLE[i];
    (((63 - zeros) as u64) << LOG_BITS) + low + (((LOG_TABLE[i + 1] - low) * r) >> 32)
}

/// Computes the binary digits of each logarithm by squaring. If the square of a number in [1, 2) reaches 2, the next
/// digit is 1.
const fn log_table() -> [u64; 257] {
    const ONE: u128 = 1 << 62;
    let mut table = [1 << LOG_BITS; 257];
    let mut i = 0;
    while i < 256 {
        let mut y = (256 + i as u128) * (ONE / 256);
        let (mut digits, mut n) = (0, 0);
        while n < LOG_BITS {
            y = (y * y) / ONE;
            digits <<= 1;
            if y >= 2 * ONE {
                y /= 2;
                digits |= 1;
            }
            n += 1;
        }
        table[i] = digits;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_point_log2_is_exact_at_powers_and_close_between() {
        for e in 0..64_u32 {
            assert_eq!(log2(1 << e), u64::from(e) << LOG_BITS);
        }
        assert_eq!(log2(0), 0);
        assert_eq!(log2(u64::MAX), (64 << LOG_BITS) - 1);
        let mut random = Generator::new(1);
        for _ in 0..10_000 {
            let zeros = random.below(64);
            let x = (random.next() >> zeros).max(1);
            let error = (x as f64).log2() - log2(x) as f64 / 2f64.powi(32);
            assert!((-1e-9..2f64.powi(-18)).contains(&error), "log2({x}) is off by {error}");
        }
    }

    #[test]
    fn fixed_point_log2_never_decreases() {
        let mut random = Generator::new(2);
        for _ in 0..10_000 {
            let x = random.next();
            let step = random.next() >> random.below(64);
            assert!(log2(x) <= log2(x.saturating_add(step)));
        }
    }

    #[test]
    fn random_generator_matches_splitmix64_reference() {
        // The first outputs of the published reference for seed 1234567.
        let mut random = Generator::new(1_234_567);
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn random_draws_below_bound_are_uniform() {
        let mut random = Generator::new(3);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(random.below(0), 0);
    }
}
