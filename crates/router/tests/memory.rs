//! Memory of a compiled service: a shared proxy holds tens of thousands.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(unsafe_code, reason = "implements a counting global allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{
    Hosts, Label, Location, PathMatch, Policy, Protocol, Region, Regions, RoundTrips, Route, Service,
    ServiceKind, ServiceName, Verdicts,
};
use fairmesh_router::{CompileInput, EndpointStats, ServiceTable};
use fairmesh_test_support::endpoint;

/// The most bytes of one service with two routes and one endpoint.
const MOST: i64 = 5_000;
const SERVICES: i64 = 1_000;

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: both calls are forwarded to the system's allocator with unchanged arguments.
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
        service: &Service { kind: ServiceKind::Replicated, protocol: Protocol::Http1, virtual_address: None },
        policy: &policy,
        endpoints: &[endpoint],
        shards: None,
        location: &here,
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        client_id: "proxy",
        client: 1,
    };
    let slots = Arc::default();
    let table = Box::new(ServiceTable::compile(&input, &slots, None));
    (slots, table)
}

#[test]
fn a_service_with_two_routes_and_one_endpoint_fits_into_5000_bytes() {
    let before = IN_USE.load(Relaxed);
    let services: Vec<_> = (0..SERVICES).map(|number| compiled(&format!("shop/s{number}"))).collect();
    let each = (IN_USE.load(Relaxed) - before) / SERVICES;
    assert!(each <= MOST, "{each} bytes");
    drop(services);
}
