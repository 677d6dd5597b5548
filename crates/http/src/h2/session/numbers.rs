//! Numbers of streams as keys.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes numbers of streams, which are chosen in their order and not by anybody's wish.
#[derive(Default)]
pub(super) struct Number(u64);

pub(super) type Numbers = BuildHasherDefault<Number>;

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u32(&mut self, number: u32) {
        // The table takes its place from some bits and a mark from others.
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
