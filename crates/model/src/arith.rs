//! The specified integer arithmetic under every decision: hash, generator, logarithm.
//!
//! All forms of Fairmesh must decide alike, the kernel one has no floating point, and so nothing here has either.

/// Mixes 64 bits so that every input bit moves about half of the output bits (finaliser of SplitMix64, Steele et al. 2014).
#[inline]
pub const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes a text to 64 bits (XXH3 without seed), once, where a name enters; decisions use only the result.
#[inline]
pub fn hash_text(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}
