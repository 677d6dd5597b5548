//! Shared by the tests of this crate: a workload whose records show whether an acknowledged batch is missing, and a
//! disk that loses unsynced writes.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod disk;
pub(crate) mod members;
pub(crate) mod proxy;
pub(crate) mod workload;

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::arith::mix64;
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_store::EtcdConfig;

/// A seeded random number generator, so that a failed run can be repeated.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % bound
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

pub(crate) fn put(key: impl AsRef<str>, value: impl Into<Bytes>, expect: Expect) -> Op {
    Op { key: Arc::from(key.as_ref()), value: Some(value.into()), expect }
}

pub(crate) fn delete(key: impl AsRef<str>, expect: Expect) -> Op {
    Op { key: Arc::from(key.as_ref()), value: None, expect }
}

pub(crate) fn batch(ops: impl IntoIterator<Item = Op>) -> Batch {
    Batch { ops: ops.into_iter().collect() }
}

/// Config of a store below `root` in the etcd with these members, over plaintext and without a user.
pub(crate) fn etcd_config(members: &[&str], root: &str) -> EtcdConfig {
    let address = format!("etcd://{}{root}", members.join(",")).parse().unwrap();
    EtcdConfig { address, tls: None, login: None }
}
