//! Compares the memory that a node reports with the memory that it allocates.

#![allow(clippy::unwrap_used, reason = "a failed precondition fails the test")]
#![allow(unsafe_code, reason = "an allocator that counts is one")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_model::{Cursor, Prefix, Revision, StoreId};
use fairmesh_rib::{Entry, NodeCore, Table};

const STORE: StoreId = StoreId(1);
const RECORDS: usize = 50_000;
const WATCHERS: usize = 400;

/// The system allocator with a counter of bytes in use.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: both calls are forwarded to the system allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn near(reported: u64, allocated: i64) {
    let ratio = reported as f64 / allocated as f64;
    assert!((0.9..1.1).contains(&ratio), "it reports {reported} and allocated {allocated}");
}

/// Returns the key of a record. Each service has a hundred records.
fn key(record: usize) -> String {
    format!("/t/shop/endpoints/s{:06}/east/i{record:06}", record / 100)
}

#[test]
fn memory_reported_by_rib_matches_allocations() {
    let empty = IN_USE.load(Relaxed);
    let entry = |record: usize| {
        let value = Bytes::from(vec![1; 300 + record % 200]);
        (key(record).into(), Entry { value, revision: 1 })
    };
    let mut table = Table::default();
    table.load(1, (0..RECORDS).map(entry));
    let mut node = NodeCore::new(STORE, table);
    let loaded = IN_USE.load(Relaxed);
    near(node.memory_bytes().0, loaded - empty);

    let from = Cursor::at(Revision { store: STORE, partition: 0, number: 1 });
    for watcher in 0..WATCHERS {
        let id = node.join();
        for n in 0..60 {
            let service = (watcher * 31 + n * n) % (RECORDS / 100);
            let prefix = Prefix::new(format!("/t/shop/endpoints/s{service:06}/")).unwrap();
            node.subscribe(id, prefix, Some(from.clone()));
        }
        assert!(node.pull(id).is_some(), "they resume");
    }
    near(node.memory_bytes().1, IN_USE.load(Relaxed) - loaded);
}
