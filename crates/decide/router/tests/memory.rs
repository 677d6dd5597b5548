//! Memory of a compiled service, which matters since a shared proxy holds tens of thousands; and allocations of
//! decisions, which must be zero.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(unsafe_code, reason = "implements a counting global allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{
    Hosts, KeyRange, Label, Location, PathMatch, Policy, Protocol, Region, RegionShares, RegionTable,
    Regions, Replica, ReplicaState, RoundTrips, Route, Service, ServiceKind, ServiceName, Shard, ShardId,
    ShardKey, ShardMap, TableOrigin, TrafficShares, Verdicts,
};
use fairmesh_router::{
    CompileInput, EndpointStats, PickError, PickParams, ServiceTable, ShardTable, TableInput,
};
use fairmesh_test_support::endpoint;

/// Maximum size of a service with two routes and one endpoint, in bytes.
const MOST: i64 = 5_000;
const SERVICES: i64 = 1_000;

/// The system allocator with a counter of bytes in use.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Number of allocations by this thread, since tests may run in parallel.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: both calls are forwarded to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as i64, Relaxed);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn route(name: &str, path: &str) -> Route {
    let mut route = Route::new(Label::new(name).unwrap());
    route.matches.path = Some(PathMatch::Prefix(path.into()));
    route.timeouts.total = Some(Duration::from_secs(2));
    route
}

fn compiled(name: &str) -> (Arc<EndpointStats>, Box<ServiceTable>) {
    let here = Location::in_region(Region::new("eu").unwrap());
    let endpoint = endpoint("one", "eu");
    let policy = Policy { routes: vec![route("read", "/v1"), route("rest", "/v2")], ..Policy::default() };
    let input = CompileInput {
        name: &ServiceName::new(name).unwrap(),
        service: &Service {
            kind: ServiceKind::Replicated,
            protocol: Protocol::Http1,
            virtual_address: None,
            identity: None,
        },
        policy: &policy,
        endpoints: &[endpoint],
        shards: None,
        location: &here,
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        table: None,
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        now: 0,
        client_id: "proxy",
        client: 1,
        requires_mtls: false,
        authorizes_callers: false,
    };
    let slots = Arc::default();
    let table = Box::new(ServiceTable::compile(&input, &slots, None));
    (slots, table)
}

#[test]
fn compiled_service_of_two_routes_and_one_endpoint_fits_5000_bytes() {
    let before = IN_USE.load(Relaxed);
    let services: Vec<_> = (0..SERVICES).map(|number| compiled(&format!("shop/s{number}"))).collect();
    let each = (IN_USE.load(Relaxed) - before) / SERVICES;
    assert!(each <= MOST, "{each} bytes");
    drop(services);
}

/// A table with 70 % to `eu`, 20 % to `us`, and 10 % dropped.
fn table() -> RegionTable {
    let share = |text: &str| text.parse().unwrap();
    let to = [("eu", "70%"), ("us", "20%")].map(|(name, text)| (Region::new(name).unwrap(), share(text)));
    let shares = RegionShares { to: to.into(), dropped: share("10%") };
    let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
    RegionTable::new(shares, TableOrigin::ByHand)
}

fn with_table(kind: ServiceKind) -> ServiceTable {
    let endpoints = [endpoint("a", "eu"), endpoint("b", "eu"), endpoint("c", "us")];
    let replicas = endpoints.iter().map(|endpoint| Replica {
        instance: endpoint.instance.clone(),
        region: endpoint.location.region.clone(),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    });
    let shard = Shard { id: ShardId(0), start: ShardKey(0), replicas: replicas.collect() };
    let map = ShardMap { version: 1, interval: KeyRange::ALL, shards: vec![shard] };
    let input = CompileInput {
        name: &ServiceName::new("shop/cart").unwrap(),
        service: &Service { kind, protocol: Protocol::Http1, virtual_address: None, identity: None },
        policy: &Policy::default(),
        endpoints: &endpoints,
        shards: Some(&Arc::new(ShardTable::compile(&map))),
        location: &Location::in_region(Region::new("eu").unwrap()),
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        table: Some(TableInput { table: &table(), age: Duration::ZERO }),
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        now: 0,
        client_id: "proxy",
        client: 1,
        requires_mtls: false,
        authorizes_callers: false,
    };
    ServiceTable::compile(&input, &Arc::default(), None)
}

#[test]
fn routing_decision_with_region_table_allocates_no_memory() {
    for kind in [ServiceKind::Replicated, ServiceKind::ConsistentHash, ServiceKind::Sharded] {
        let compiled = with_table(kind);
        let (mut picked, mut dropped) = (0, 0);
        for call in 0..10_000 {
            let key = Some(ShardKey(u128::from(call)));
            let ask = PickParams { key, call_seed: call, ..PickParams::default() };
            let before = ALLOCATIONS.get();
            let result = compiled.pick(&ask, 0, call);
            let allocations = ALLOCATIONS.get() - before;
            match result {
                Ok(_) => {
                    assert_eq!(allocations, 0, "{kind:?}");
                    picked += 1;
                }
                // Errors are always boxed.
                Err(why) => {
                    assert!(matches!(*why, PickError::Dropped { .. }) && allocations <= 1, "{why}");
                    dropped += 1;
                }
            }
        }
        assert!(picked > 8_000 && dropped > 500, "{kind:?}: {picked} picked, {dropped} dropped");
    }
}
