//! Cost of a call in the client library without sending it: [`Call::route`], `decide` and `finish`, with route, budget,
//! shard, ring, subset, pick, and the counters before and after. The lanes are empty, so no transport is included. The
//! clock is excluded too: a transport reads it once per call and passes the time.
//!
//! The seed of each call depends on the endpoint of the previous call, so that calls cannot overlap in the processor's
//! pipeline; they would not in a program that does other work between calls. Times are thread CPU times.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::HashSet,
    error::Error,
    hint::black_box,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use fairmesh_calls::{
    call::{AttemptOutcome, Call, CallContext, CallStart, Clock, DecisionContext, RetryDecision},
    discovery::{ReadyService, ServiceState, Subscription},
};
use fairmesh_model::{
    Balancing, Endpoint, EndpointState, Hosts, InstanceId, KeyRange, Location, Policy, Protocol, Region,
    RegionShares, RegionTable, Regions, Replica, ReplicaState, Role, RoundTrips, Service, ServiceKind,
    ServiceName, Shard, ShardId, ShardKey, ShardMap, Share, TableOrigin, TrafficShares, Verdicts,
    arith::{Generator, mix64},
};
use fairmesh_router::{CompileInput, RequestView, ServiceTable, ShardTable, TableInput};

use crate::report::Report;

/// A service as the library holds it.
type Known = Arc<Subscription<()>>;

/// Number of services that one program calls in turn.
const SERVICES: usize = 1000;
/// Number of services at the largest fleet size: as many as fit in memory.
const LARGEST_SERVICES: usize = 6;
/// Number of services when a client connects to every endpoint: with 1,000 each, as many as a process has file
/// descriptors for.
const FULL_SERVICES: usize = 20;
/// Shards of the largest map that ServiceRouter reports (ServiceRouter §4.2.2).
const SHARDS: usize = 1_500_000;
/// Goals, in nanoseconds.
const CALL_NS: f64 = 60.0;
const SHARD_NS: f64 = 250.0;

/// Allocator that counts the allocations of the measuring thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged. The counter is a plain thread-local number; accessing it
// neither allocates nor runs a destructor.
#[allow(unsafe_code, reason = "a global allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Duration of the measurement.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    calls: u64,
}

/// Result of one series of rounds.
#[derive(Debug)]
struct Series {
    /// Nanoseconds per call of each round, ascending.
    rounds: Vec<f64>,
    /// Allocations in all rounds.
    allocations: u64,
}

/// Measures; `quick` ends within a minute.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let effort =
        if quick { Effort { rounds: 3, calls: 500_000 } } else { Effort { rounds: 7, calls: 3_000_000 } };
    let mut report = Report::new("pick");
    let mut allocations = 0;
    let sizes = [
        ("ns_10", SERVICES, 10, 20),
        ("ns_1000", SERVICES, 1000, 20),
        ("ns_90000", LARGEST_SERVICES, 90_000, 20),
        ("ns_1000_k_all", FULL_SERVICES, 1000, 0),
    ];
    // Kept to the end, so that each fleet gets fresh memory instead of fragments left by its predecessor.
    let mut fleets = Vec::new();
    for (name, services, endpoints, subset) in sizes {
        let fleet: Vec<_> = (0..services).map(known).collect();
        fleet.iter().enumerate().for_each(|(i, known)| learn(known, i, endpoints, subset));
        check_fleet(&fleet, endpoints, subset)?;
        let series = Series::measure(effort, |calls, seed| call_in_turn(&fleet, calls, seed));
        let about = format!("cycling through {services} services of {endpoints} endpoints, k = {subset}");
        allocations += series.report(&mut report, name, Some(CALL_NS), &about);
        fleets.push(fleet);
    }
    let divided: Vec<_> = (0..SERVICES).map(known).collect();
    divided.iter().enumerate().for_each(|(i, known)| learn_divided(known, i, 1000));
    let series = Series::measure(effort, |calls, seed| call_in_turn(&divided, calls, seed));
    let about =
        format!("cycling through {SERVICES} services of 1000 endpoints in two regions, with a region table");
    allocations += series.report(&mut report, "ns_1000_table", Some(1.5 * CALL_NS), &about);
    let (sharded, shards, map_notes) = sharded()?;
    let series = Series::measure(effort, |calls, seed| look_up(&shards, calls, seed));
    allocations += series.report(&mut report, "shard_ns", Some(SHARD_NS), &map_notes);
    let series = Series::measure(effort, |calls, seed| call_by_key(&sharded, calls, seed));
    allocations +=
        series.report(&mut report, "ns_by_key", None, "a whole call by random key over the same shards");
    report.figure("allocations", allocations as f64, Some(0.0), "in all calls measured");
    Ok(report)
}

impl Series {
    /// Runs `work(calls, seed)` once as a warm-up, then once per round.
    fn measure(effort: Effort, mut work: impl FnMut(u64, u64) -> u64) -> Self {
        black_box(work(effort.calls / 5, 0));
        let mut rounds = Vec::with_capacity(effort.rounds);
        let before = ALLOCATIONS.get();
        for round in 0..effort.rounds {
            let start = now();
            black_box(work(effort.calls, mix64(round as u64)));
            rounds.push((now() - start).as_nanos() as f64 / effort.calls as f64);
        }
        let allocations = ALLOCATIONS.get() - before;
        rounds.sort_by(f64::total_cmp);
        Self { rounds, allocations }
    }

    /// Reports the median, and returns the number of allocations.
    fn report(&self, report: &mut Report, name: &str, goal: Option<f64>, about: &str) -> u64 {
        let (first, last) = (self.rounds[0], self.rounds[self.rounds.len() - 1]);
        let note = format!("ns, {first:.1} to {last:.1} over {} rounds; {about}", self.rounds.len());
        report.figure(name, self.rounds[self.rounds.len() / 2], goal, note);
        self.allocations
    }
}

/// CPU time of this thread: on a shared machine, other processes must not count.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to our own timespec, and the kernel writes nothing else.
    #[allow(unsafe_code, reason = "the standard library has no clock of processor time")]
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Makes `calls` calls to the services in turn. The result depends on every choice, so that no call is optimised away.
fn call_in_turn(fleet: &[Known], calls: u64, mut seed: u64) -> u64 {
    let (context, clock) = (CallContext::default(), Clock::start());
    let mut sum = 0;
    let mut service = 0;
    for call in 0..calls {
        let known = &fleet[service];
        service = if service + 1 == fleet.len() { 0 } else { service + 1 };
        if let Some(index) = one_call(known, &context, DecisionContext { clock, now: call * 1000, seed }) {
            sum += u64::from(index);
            seed = seed.wrapping_add(u64::from(index) | 1);
        }
    }
    sum
}

/// Decides and finishes one call. Returns the index of the chosen endpoint.
#[inline]
fn one_call(known: &Known, context: &CallContext, at: DecisionContext) -> Option<u32> {
    let request = RequestView { host: "cart", path: "/v1/items", method: "GET", headers: &(), grpc: false };
    let start = CallStart { now: at.now, limit: None, seed: at.seed };
    let mut call = Call::new(known);
    let view = call.route(&request, context, start).ok()?;
    drop(call.pick(view, context, at).ok()?);
    black_box(call.deadline());
    let next = call.finish(AttemptOutcome::Responded, at.seed);
    let index = call.picked()?.index;
    (next == RetryDecision::Done).then_some(index)
}

fn look_up(shards: &ShardTable, calls: u64, seed: u64) -> u64 {
    let mut random = Generator::new(seed);
    let mut found = 0;
    for _ in 0..calls {
        let key = key(&mut random, found);
        found = shards.locate(key).map_or(0, |located| u64::from(located.shard.0));
    }
    found
}

fn call_by_key(known: &Known, calls: u64, seed: u64) -> u64 {
    let mut random = Generator::new(seed);
    let clock = Clock::start();
    let mut found = 0;
    for call in 0..calls {
        let context = CallContext { key: Some(key(&mut random, found)), ..CallContext::default() };
        let at = DecisionContext { clock, now: call * 1000, seed: seed ^ call };
        found = one_call(known, &context, at).map_or(0, u64::from);
    }
    found
}

/// A key that depends on the result of the previous look-up, so that look-ups cannot overlap.
fn key(random: &mut Generator, found: u64) -> ShardKey {
    ShardKey(u128::from(random.next() ^ mix64(found)) << 64 | u128::from(random.next()))
}

fn name(prefix: &str, i: usize) -> InstanceId {
    InstanceId::new(format!("{prefix}-{i}")).expect("letters and digits make an id")
}

fn place(region: &str) -> Location {
    Location::in_region(Region::new(region).expect("letters make a region"))
}

fn endpoints(prefix: &str, n: usize) -> Vec<Endpoint> {
    let endpoint = |i: usize| Endpoint {
        mtls: false,
        instance: name(prefix, i),
        address: SocketAddr::from(([10, (i >> 16) as u8, (i >> 8) as u8, i as u8], 80)),
        location: place("eu"),
        state: EndpointState::Serving,
        weight: 1000,
        lease: None,
        labels: Default::default(),
    };
    (0..n).map(endpoint).collect()
}

/// A service that the program has a handle to, without any records yet.
fn known(service: usize) -> Known {
    let name = ServiceName::new(format!("bench/s{service}")).expect("letters and digits make a name");
    Arc::new(Subscription::new(name))
}

/// The records of a service.
struct Records<'a> {
    kind: ServiceKind,
    endpoints: &'a [Endpoint],
    subset: u32,
    shards: Option<&'a Arc<ShardTable>>,
    table: Option<&'a RegionTable>,
}

/// Compiles and publishes a snapshot, as the library's resolver does.
fn publish(known: &Known, records: &Records<'_>) {
    let &Records { kind, endpoints, subset, shards, table } = records;
    let facts = CompileInput {
        name: known.name(),
        service: &Service { kind, protocol: Protocol::Http1, virtual_address: None, identity: None },
        policy: &Policy { balancing: Balancing { subset, ..Balancing::default() }, ..Policy::default() },
        endpoints,
        shards,
        location: &place("eu"),
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        table: table.map(|table| TableInput { table, age: Duration::ZERO }),
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        now: 0,
        client_id: "bench",
        client: 7,
        requires_mtls: false,
        authorizes_callers: false,
    };
    let upstream = ServiceTable::compile(&facts, known.endpoint_stats(), None);
    known.publish(ServiceState::Ready(ReadyService::new(upstream, Vec::new(), 1, None)));
}

/// Publishes the endpoints of a service, with calls in flight, so that a pick sees the loads of a busy client.
fn learn(known: &Known, service: usize, n: usize, subset: u32) {
    let endpoints = endpoints(&format!("s{service}"), n);
    let kind = ServiceKind::Replicated;
    publish(known, &Records { kind, endpoints: &endpoints, subset, shards: None, table: None });
    keep_busy(known);
}

/// As `learn`, with half of the endpoints in another region, and a table that divides calls between both regions.
fn learn_divided(known: &Known, service: usize, n: usize) {
    let mut endpoints = endpoints(&format!("s{service}"), n);
    endpoints.iter_mut().step_by(2).for_each(|endpoint| endpoint.location = place("us"));
    let share = |percent: u32| Share::of_millionths(percent * 10_000).expect("at most 100 %");
    let to = [("eu", 70), ("us", 30)].map(|(name, percent)| (place(name).region, share(percent)));
    let default = Some(RegionShares { to: to.into(), dropped: Share::NONE });
    let shares = TrafficShares { default, ..TrafficShares::default() };
    let table = RegionTable::new(shares, TableOrigin::ByHand);
    let kind = ServiceKind::Replicated;
    publish(known, &Records { kind, endpoints: &endpoints, subset: 20, shards: None, table: Some(&table) });
    keep_busy(known);
}

/// Starts calls that stay in flight.
fn keep_busy(known: &Known) {
    if let ServiceState::Ready(ReadyService { upstream, .. }) = &*known.state() {
        let busy = upstream.candidates().filter(|candidate| candidate.in_subset).map(|c| c.index);
        busy.for_each(|index| (0..mix64(u64::from(index)) % 4).for_each(|_| upstream.begin(index)));
    }
}

/// Checks that picks stay inside subsets of the right size, reach the whole subset, and leave the counters unchanged.
fn check_fleet(fleet: &[Known], endpoints: usize, subset: u32) -> Result<(), Box<dyn Error>> {
    let size = if subset == 0 { endpoints } else { endpoints.min(subset as usize) };
    let (context, clock) = (CallContext::default(), Clock::start());
    for known in fleet.iter().take(5) {
        let view = known.state();
        let ServiceState::Ready(ReadyService { upstream, .. }) = &*view else {
            return Err("nothing was published".into());
        };
        let kept: HashSet<u32> = upstream.candidates().filter(|c| c.in_subset).map(|c| c.index).collect();
        let outstanding = || upstream.candidates().map(|c| u64::from(c.outstanding)).sum::<u64>();
        let before = outstanding();
        let reached: HashSet<_> = (0..size as u64 * 40)
            .filter_map(|seed| one_call(known, &context, DecisionContext { clock, now: 0, seed }))
            .collect();
        if kept.len() != size || !reached.is_subset(&kept) || outstanding() != before {
            return Err(format!("wrong picks from {endpoints} endpoints with k = {subset}").into());
        }
    }
    Ok(())
}

/// The large map over 10,000 endpoints: service, table, and a description.
fn sharded() -> Result<(Known, Arc<ShardTable>, String), Box<dyn Error>> {
    let endpoints = endpoints("holder", 10_000);
    let map = shard_map(&endpoints);
    let start = now();
    let shards = Arc::new(ShardTable::compile(&map));
    let compiled = now() - start;
    let known = known(0);
    let kind = ServiceKind::Sharded;
    publish(&known, &Records { kind, endpoints: &endpoints, subset: 20, shards: Some(&shards), table: None });
    let mut random = Generator::new(3);
    for found in 0..20_000 {
        let key = key(&mut random, found);
        let expected = map.position(key).map(|position| map.shards[position].id);
        if shards.locate(key).map(|located| located.shard) != expected {
            return Err(format!("key {key} was looked up in the wrong shard").into());
        }
    }
    let bytes = shards.bytes() as f64 / map.shards.len() as f64;
    let notes = format!(
        "{SHARDS} shards of uneven size; {bytes:.1} bytes a shard with 3 copies, compiled in {compiled:?}"
    );
    Ok((known, shards, notes))
}

/// Shards over the whole 128-bit key space: half spread evenly, half crowded into a thousandth of the keys.
fn shard_map(endpoints: &[Endpoint]) -> ShardMap {
    let mut random = Generator::new(1);
    let mut wide = || u128::from(random.next()) << 64 | u128::from(random.next());
    let mut starts: Vec<u128> =
        (0..SHARDS).map(|i| if i % 2 == 0 { wide() } else { wide() / 1000 }).collect();
    starts[0] = 0;
    starts.sort_unstable();
    starts.dedup();
    let role = Role::new("primary").expect("letters make a role");
    let mut draw = Generator::new(2);
    let shards = starts.into_iter().zip(0..).map(|(start, id)| {
        let mut replica = || {
            let holder = &endpoints[draw.below(endpoints.len() as u64) as usize];
            let (instance, region) = (holder.instance.clone(), holder.location.region.clone());
            Replica { instance, region, role: role.clone(), state: ReplicaState::Serving }
        };
        Shard { id: ShardId(id), start: ShardKey(start), replicas: vec![replica(), replica(), replica()] }
    });
    ShardMap { version: 1, interval: KeyRange::ALL, shards: shards.collect() }
}
