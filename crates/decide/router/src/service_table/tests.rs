use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_balancer::load_poll::PollState;
use fairmesh_model::{
    Backend, Balancing, Endpoint, EndpointState, Hosts, InstanceId, KeyRange, Label, Location, Match,
    MeasuredDistance, MeasuredDistances, Region, RegionInfo, Regions, Replica, ReplicaState, Ring,
    RoundTrips, Route, Service, ServiceKind, Shard, ShardId, ShardKey, ShardMap, Timeouts, Verdict, Verdicts,
    arith::{Generator, hash_text, mix64},
};
use proptest::prelude::*;

use super::*;

mod actions;
mod authorization;
mod capacity;
mod health;
mod order;
mod plaintext;
mod sharded;
mod tables;

/// The records of one service for a caller in `eu`. `us` is 80 ms away and `asia` 200 ms; the distance of `moon` is
/// unknown.
#[derive(Debug)]
struct Fleet {
    name: ServiceName,
    service: Service,
    policy: Policy,
    endpoints: Vec<Endpoint>,
    shards: Option<Arc<ShardTable>>,
    location: Location,
    regions: Regions,
    round_trips: RoundTrips,
    hosts: Hosts,
    health: Verdicts,
    client: u64,
    requires_mtls: bool,
    authorizes_callers: bool,
}

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

fn endpoint(id: &str, place: &str) -> Endpoint {
    let address = format!("10.0.0.{}:80", hash_text(id) % 255 + 1).parse().unwrap();
    Endpoint { address, ..fairmesh_test_support::endpoint(id, place) }
}

impl Fleet {
    fn new(kind: ServiceKind, endpoints: Vec<Endpoint>) -> Self {
        let mut round_trips = RoundTrips::default();
        round_trips.set(region("eu"), region("near"), Duration::from_millis(4));
        round_trips.set(region("eu"), region("us"), Duration::from_millis(80));
        round_trips.set(region("eu"), region("asia"), Duration::from_millis(200));
        Self {
            name: ServiceName::new("shop/cart").unwrap(),
            service: Service { kind, protocol: Protocol::Http1, virtual_address: None, identity: None },
            policy: Policy::default(),
            endpoints,
            shards: None,
            location: Location::in_region(region("eu")),
            regions: Regions::default(),
            round_trips,
            hosts: Hosts::default(),
            health: Verdicts::default(),
            client: 42,
            requires_mtls: false,
            authorizes_callers: true,
        }
    }

    fn replicated(endpoints: &[(&str, &str)]) -> Self {
        let endpoints = endpoints.iter().map(|(id, place)| endpoint(id, place)).collect();
        Self::new(ServiceKind::Replicated, endpoints)
    }

    fn many(kind: ServiceKind, n: usize) -> Self {
        Self::new(kind, (0..n).map(|i| endpoint(&format!("i{i}"), "eu")).collect())
    }

    fn compile(&self, previous: Option<&ServiceTable>) -> ServiceTable {
        let endpoint_stats =
            previous.map(|previous| Arc::clone(&previous.endpoint_stats)).unwrap_or_default();
        ServiceTable::compile(&self.input(&self.policy), &endpoint_stats, previous)
    }

    fn recompile(&self, previous: &ServiceTable) -> ServiceTable {
        ServiceTable::recompile(&self.input(previous.policy()), &previous.endpoint_stats, previous)
    }

    fn input<'a>(&'a self, policy: &'a Policy) -> CompileInput<'a> {
        CompileInput {
            name: &self.name,
            service: &self.service,
            policy,
            endpoints: &self.endpoints,
            shards: self.shards.as_ref(),
            location: &self.location,
            regions: &self.regions,
            round_trips: &self.round_trips,
            table: None,
            hosts: &self.hosts,
            health: &self.health,
            now: 1,
            client_id: "web-1",
            client: self.client,
            requires_mtls: self.requires_mtls,
            authorizes_callers: self.authorizes_callers,
        }
    }
}

fn id(table: &ServiceTable, picked: &EndpointPick) -> String {
    table.target(picked.index).instance.to_string()
}

/// The instances that 500 calls without a key reach.
fn reached(table: &ServiceTable) -> BTreeSet<String> {
    let pick = |seed| table.pick(&PickParams::default(), 0, seed).unwrap();
    (0..500).map(|seed| id(table, &pick(seed))).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn client_calls_only_its_own_subset_of_20_endpoints() {
    let table = Fleet::many(ServiceKind::Replicated, 300).compile(None);
    let kept: BTreeSet<_> =
        table.candidates().filter(|c| c.in_subset).map(|c| c.target.instance.to_string()).collect();
    assert_eq!(kept.len(), 20);
    assert_eq!(reached(&table), kept);
    let mut other = Fleet::many(ServiceKind::Replicated, 300);
    other.client = 43;
    assert_ne!(reached(&other.compile(None)), kept, "another client has another subset");
}

#[test]
fn recompiled_service_shares_routes_of_unchanged_policy() {
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    let route = |number| Route::new(Label::new(format!("r{number}")).unwrap());
    fleet.policy.routes = (0..20).map(route).collect();
    fleet.policy.timeouts.total = Some(Duration::from_secs(3));
    let first = fleet.compile(None);
    fleet.endpoints.push(endpoint("b", "eu"));
    let second = fleet.recompile(&first);
    assert!(first.routes.shares_rules(&second.routes));
    assert_eq!(second.routes.len(), 20);
    assert_eq!(second.policy(), first.policy());
    assert_eq!(reached(&second), names(&["a", "b"]));
    assert!(!first.routes.shares_rules(&fleet.compile(Some(&second)).routes), "of another policy");
}

#[test]
fn subset_size_0_means_all_endpoints() {
    let mut fleet = Fleet::many(ServiceKind::Replicated, 60);
    fleet.policy.balancing = Balancing { subset: 0, ..Balancing::default() };
    assert_eq!(reached(&fleet.compile(None)).len(), 60);
}

#[test]
fn endpoint_call_counts_survive_new_service_snapshots() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu")]);
    let first = fleet.compile(None);
    let picked = first.pick(&PickParams::default(), 0, 1).unwrap();
    first.begin(picked.index);
    fleet.endpoints.push(endpoint("c", "eu"));
    fleet.endpoints[0].weight = 2000;
    let second = fleet.compile(Some(&first));
    let outstanding = |u: &ServiceTable| u.candidates().map(|c| c.outstanding).sum::<u32>();
    assert_eq!(id(&second, &picked), id(&first, &picked));
    assert_eq!((outstanding(&first), outstanding(&second)), (1, 1));
    let unchanged = second.candidates().find(|c| c.target.instance.as_str() == "b").unwrap().index;
    assert!(Arc::ptr_eq(first.target(unchanged), second.target(unchanged)), "unchanged targets are shared");
    second.finish(picked.index, Outcome::Ok, 0);
    assert_eq!(outstanding(&first), 0);
}

#[test]
fn polled_load_report_excludes_callers_own_calls() {
    let table = Fleet::replicated(&[("a", "eu")]).compile(None);
    let load = |cpu| LoadReport { requests: Some(3), cpu: Some(cpu), ..LoadReport::default() };
    let polled = |cpu, now| {
        table.endpoint_ref(0).record_polled_report(&PollState::default(), load(cpu), now);
        table.last_report(0).unwrap().load
    };
    assert_eq!(polled(500, 1), load(500), "all three are of other callers");
    table.begin(0);
    table.begin(0);
    // The report in a response to one of the two calls.
    assert_eq!(polled(510, 2), LoadReport { requests: Some(2), ..load(510) });
}

#[test]
fn polled_load_report_earns_no_score_reward() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu")]);
    fleet.policy.balancing.score.reward = 100;
    let table = fleet.compile(None);
    let [a, b] = [0, 1].map(|index| table.endpoint_ref(index));
    for now in 1..=50 {
        a.record_polled_report(
            &PollState::default(),
            LoadReport { requests: Some(0), ..LoadReport::default() },
            now,
        );
    }
    assert_eq!(reached(&table), names(&["a", "b"]));
    (1..=50).for_each(|now| b.record_report(LoadReport { requests: Some(0), ..LoadReport::default() }, now));
    assert_eq!(reached(&table), names(&[b.target().instance.as_str()]));
}

#[test]
fn instance_listed_in_two_regions_is_called_only_where_it_serves() {
    let mut fleet = Fleet::replicated(&[("a", "us"), ("a", "eu"), ("b", "eu")]);
    fleet.endpoints[0].state = EndpointState::Lost;
    let table = fleet.compile(None);
    assert_eq!(table.candidates().count(), 2);
    assert_eq!(reached(&table), names(&["a", "b"]));
}

#[test]
fn kernel_gets_pick_data_only_of_services_it_can_route_itself() {
    let numbers = |fleet: &Fleet| fleet.compile(None).numbers();
    let one = || Fleet::replicated(&[("a", "us")]);
    assert_eq!(numbers(&Fleet::replicated(&[])), Err("no endpoint can be called"));
    let both = numbers(&Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("c", "us")])).unwrap();
    assert_eq!(both.indices().collect::<Vec<_>>(), [0, 1], "c is further away");
    let last = both.candidates[1];
    assert_eq!(last.cumulative_weight, u64::from(both.candidates[0].weight + last.weight));
    assert_eq!((both.policy, both.equal_weight), (0, last.weight));
    let changed = |change: &dyn Fn(&mut Fleet)| {
        let mut fleet = one();
        change(&mut fleet);
        numbers(&fleet).map(|numbers| numbers.indices().collect::<Vec<_>>())
    };
    let refused = |change: &dyn Fn(&mut Fleet)| changed(change).unwrap_err();
    assert_eq!(changed(&|_| {}), Ok(vec![0]));
    let unready = refused(&|fleet| fleet.endpoints[0].state = EndpointState::Starting);
    assert_eq!(unready, "no endpoint can be called");
    let last_resort = refused(&|fleet| fleet.endpoints[0].state = EndpointState::Draining);
    assert_eq!(last_resort, "its endpoints drain or are unhealthy");
    changed(&|fleet| fleet.policy.locality.local_only = true).unwrap_err();
    let moving_average = refused(&|fleet| fleet.policy.balancing.policy = BalancingPolicy::PeakEwma);
    assert_eq!(moving_average, "its policy balances by peakEwma");
    let timeouts = Timeouts { total: Some(Duration::from_secs(1)), ..Timeouts::default() };
    let timed = refused(&|fleet| fleet.policy.timeouts = timeouts);
    assert_eq!(timed, "its policy has a timeout", "servers get the deadline");
    let keyed = refused(&|fleet| fleet.service.kind = ServiceKind::ConsistentHash);
    assert_eq!(keyed, "its calls are picked by keys");
}

#[test]
fn matched_route_sets_target_class_timeout_and_idempotence() {
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    let seconds = |secs| Timeouts { total: Some(Duration::from_secs(secs)), ..Timeouts::default() };
    let other = ServiceName::new("shop/cart-next").unwrap();
    let split = |weights: [u32; 2]| {
        vec![
            Backend { service: fleet.name.clone(), weight: weights[0] },
            Backend { service: other.clone(), weight: weights[1] },
        ]
    };
    let path =
        |path: &str| Match { path: Some(fairmesh_model::PathMatch::Prefix(path.into())), ..Match::default() };
    let route = |name: &str, split| Route {
        matches: path(&format!("/{name}")),
        split,
        class: Some(Label::new("heavy").unwrap()),
        timeouts: seconds(2),
        idempotent: true,
        ..Route::new(Label::new(name).unwrap())
    };
    let routes = vec![route("all", Vec::new()), route("half", split([1, 1])), route("none", split([0, 1]))];
    fleet.policy.routes = routes;
    fleet.policy.timeouts = seconds(9);
    let table = fleet.compile(None);
    let at = |path, seed| {
        table.route(&RequestView { host: "", path, method: "GET", headers: &(), grpc: false }, seed)
    };
    let all = at("/all/x", 1);
    assert_eq!((all.target, all.timeouts, all.idempotent), (&fleet.name, seconds(2), true));
    assert_eq!(all.class.map(Label::as_str), Some("heavy"));
    assert!((0..100).all(|seed| at("/none", seed).target == &other));
    let halves: BTreeSet<_> = (0..100).map(|seed| at("/half", seed).target.to_string()).collect();
    assert_eq!(halves.len(), 2);
    let default = at("/elsewhere", 1);
    assert_eq!((default.route, default.timeouts), (None, seconds(9)));
    let explained = table.explain(
        &RequestView { host: "", path: "/none", method: "GET", headers: &(), grpc: false },
        &PickParams::default(),
        0,
        1,
    );
    assert_eq!((explained.target, explained.picked), (other, None), "the other service's snapshot continues");
}

#[test]
fn explanation_names_callers_region_and_has_no_empty_step() {
    let region_step = |fleet: &Fleet| {
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let explained = fleet.compile(None).explain(&request, &PickParams::default(), 0, 1);
        assert!(explained.steps.iter().all(|step| !step.detail.is_empty()), "{:?}", explained.steps);
        explained.steps.into_iter().find(|step| step.title == "region").unwrap().detail
    };
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    assert_eq!(region_step(&fleet), "eu is here (0 ms): ring 0, 100.0 % of the capacity");
    fleet.endpoints.clear();
    assert_eq!(region_step(&fleet), "no region has an endpoint");
}

fn a_state() -> impl Strategy<Value = EndpointState> {
    use EndpointState::{Draining, Lost, Serving, Starting};
    prop::sample::select(vec![Serving, Serving, Serving, Serving, Starting, Draining, Lost])
}

prop_compose! {
    fn any_fleet()(
        kind in prop::sample::select(vec![
            ServiceKind::Replicated, ServiceKind::Sharded, ServiceKind::ConsistentHash,
        ]),
        endpoints in prop::collection::vec(
            (prop::sample::select(vec!["eu", "near", "us", "asia", "moon"]), a_state(), 1_u32..3000), 0..60,
        ),
        subset in 0_u32..8, local_only in prop::bool::weighted(0.2), draining: bool, seed: u64,
    ) -> Fleet {
        let mut random = Generator::new(seed);
        let endpoints = endpoints.into_iter().enumerate().map(|(i, (place, state, weight))| {
            Endpoint { state, weight, ..endpoint(&format!("i{i}"), place) }
        });
        let mut fleet = Fleet::new(kind, endpoints.collect());
        fleet.policy.balancing.subset = subset;
        fleet.policy.locality.local_only = local_only;
        fleet.regions.regions.insert(region("near"), RegionInfo { draining, ..RegionInfo::default() });
        fleet.shards = Some(Arc::new(ShardTable::compile(&sharded::any_map(&fleet.endpoints, &mut random))));
        fleet
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn explain_decides_like_pick_and_tries_avoided_endpoints_last(
        fleet in any_fleet(), seed: u64, key in 0_u128..2000, role in prop::option::of(0_usize..3),
        busy in prop::collection::vec((0_u32..60, prop::bool::ANY), 0..80),
        avoid in prop::collection::vec(0_u32..60, 0..4),
    ) {
        let table = fleet.compile(None);
        for (index, fails) in busy {
            table.begin(index);
            if fails {
                table.finish(index, Outcome::Unreachable, 5);
            }
        }
        let role = role.map(sharded::role);
        let params = PickParams { key: Some(ShardKey(key)), role: role.as_ref(), avoid: &avoid, ..PickParams::default() };
        let picked = table.pick(&params, 7, seed);
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let explained = table.explain(&request, &params, 7, seed);
        prop_assert_eq!(explained.picked.as_ref(), Some(&picked));
        if let Ok(picked) = picked {
            let target = table.target(picked.index);
            let last = explained.steps.last().unwrap();
            prop_assert!(last.title == "pick" && last.detail.starts_with(target.instance.as_str()));
            prop_assert_ne!(target.state, EndpointState::Starting);
            prop_assert!(!fleet.policy.locality.local_only || target.location.region == fleet.location.region);
            if avoid.contains(&picked.index) {
                // The endpoints that this call would otherwise reach are avoided too.
                for other in 0..50 {
                    let free = table.pick(&PickParams { avoid: &[], ..params }, 7, other).unwrap();
                    prop_assert!(avoid.contains(&free.index));
                }
            }
        }
    }
}
