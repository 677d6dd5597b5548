//! Hashes of header fields.

use std::hash::{BuildHasher as _, RandomState};

/// An odd constant without a bit pattern.
const MIX: u64 = 0xd6e8_feb8_6659_fd93;

/// Keyed hashes that take a few nanoseconds. Colliding texts can be constructed only with the key.
#[derive(Debug)]
pub(super) struct FieldHasher {
    pub(super) start: u64,
    pub(super) key: u64,
}

impl FieldHasher {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        Self { start: random.hash_one(0), key: random.hash_one(1) }
    }

    /// Returns the hash state after a first text.
    pub(super) fn begin(&self, text: &[u8]) -> u64 {
        self.extend(self.start, text)
    }

    /// Returns the hash state after another text.
    pub(super) fn extend(&self, state: u64, text: &[u8]) -> u64 {
        // The length changes all bits, so that no choice of the first byte can cancel it out.
        let mut sum = state.wrapping_add(MIX.wrapping_mul(text.len() as u64));
        let mut rest = text;
        while let Some((sixteen, after)) = rest.split_first_chunk()
            && !after.is_empty()
        {
            sum = self.fold(sum, halves(*sixteen));
            rest = after;
        }
        self.fold(sum, last(text))
    }

    /// Finishes a hash. Texts that differ by one digit have products at equal distances, which would be invisible in
    /// some bits. The bits are therefore mixed once more.
    pub(super) fn hash(state: u64) -> u64 {
        let mixed = (state ^ state >> 32).wrapping_mul(MIX);
        mixed ^ mixed >> 32
    }

    fn fold(&self, sum: u64, (one, other): (u64, u64)) -> u64 {
        let product = u128::from(sum ^ one) * u128::from(self.key ^ other);
        product as u64 ^ (product >> 64) as u64
    }
}

fn halves(sixteen: [u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(sixteen);
    (both as u64, (both >> 64) as u64)
}

/// Returns the last 16 bytes of a text, or all bytes of a shorter text, in two halves. Bytes may be in both halves; the
/// length is hashed too.
fn last(text: &[u8]) -> (u64, u64) {
    if let Some(sixteen) = text.last_chunk() {
        return halves(*sixteen);
    }
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
    }
    match *text {
        [] => (0, 0),
        [one] => (one.into(), 0),
        [one, two] => (one.into(), two.into()),
        [one, two, three, ..] => (u16::from_le_bytes([one, two]).into(), three.into()),
    }
}
