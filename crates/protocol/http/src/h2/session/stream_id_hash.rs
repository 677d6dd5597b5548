//! Hashes stream identifiers.

use std::hash::{BuildHasherDefault, Hasher};

/// A multiplicative hash. Stream identifiers are sequential and cannot be chosen to collide.
#[derive(Default)]
pub(super) struct StreamIdHasher(u64);

pub(super) type StreamIdHash = BuildHasherDefault<StreamIdHasher>;

impl Hasher for StreamIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u32(&mut self, id: u32) {
        // The hash table takes the bucket from some bits and the tag from others, so all bits must be mixed.
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
