use std::{collections::BTreeSet, time::Duration};

use fairmesh_balancer::poll::PollState;
use fairmesh_model::{
    Balancing, Endpoint, EndpointState, Hosts, InstanceId, KeyRange, Label, Location, Match, Region,
    RegionInfo, Regions, Replica, ReplicaState, Ring, RoundTrips, Route, Service, ServiceKind, Shard,
    ShardId, ShardKey, ShardMap, Target, Timeouts, Verdict, Verdicts,
    arith::{Generator, hash_text, mix64},
};
use proptest::prelude::*;

use super::*;

mod actions;
mod capacity;
mod health;
mod order;
mod sharded;

/// The records of one service, for a caller in `eu`: `us` is 80 ms away, `asia` 200 ms, `moon` nobody measured.
#[derive(Debug)]
struct World {
    name: ServiceName,
    service: Service,
    policy: Policy,
    endpoints: Vec<Endpoint>,
    shards: Option<Arc<Shards>>,
    location: Location,
    regions: Regions,
    round_trips: RoundTrips,
    hosts: Hosts,
    health: Verdicts,
    client: u64,
}

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

fn endpoint(id: &str, place: &str) -> Endpoint {
    let address = format!("10.0.0.{}:80", hash_text(id) % 255 + 1).parse().unwrap();
    Endpoint { address, ..fairmesh_test_support::endpoint(id, place) }
}

impl World {
    fn new(kind: ServiceKind, endpoints: Vec<Endpoint>) -> Self {
        let mut round_trips = RoundTrips::default();
        round_trips.set(region("eu"), region("near"), Duration::from_millis(4));
        round_trips.set(region("eu"), region("us"), Duration::from_millis(80));
        round_trips.set(region("eu"), region("asia"), Duration::from_millis(200));
        Self {
            name: ServiceName::new("shop/cart").unwrap(),
            service: Service { kind, protocol: Protocol::Http1, virtual_address: None },
            policy: Policy::default(),
            endpoints,
            shards: None,
            location: Location::in_region(region("eu")),
            regions: Regions::default(),
            round_trips,
            hosts: Hosts::default(),
            health: Verdicts::default(),
            client: 42,
        }
    }

    fn replicated(endpoints: &[(&str, &str)]) -> Self {
        let endpoints = endpoints.iter().map(|(id, place)| endpoint(id, place)).collect();
        Self::new(ServiceKind::Replicated, endpoints)
    }

    fn many(kind: ServiceKind, n: usize) -> Self {
        Self::new(kind, (0..n).map(|i| endpoint(&format!("i{i}"), "eu")).collect())
    }

    fn compile(&self, previous: Option<&Upstream>) -> Upstream {
        let facts = Facts {
            name: &self.name,
            service: &self.service,
            policy: &self.policy,
            endpoints: &self.endpoints,
            shards: self.shards.as_ref(),
            location: &self.location,
            regions: &self.regions,
            round_trips: &self.round_trips,
            hosts: &self.hosts,
            health: &self.health,
            client_id: "web-1",
            client: self.client,
        };
        let endpoint_stats =
            previous.map(|previous| Arc::clone(&previous.endpoint_stats)).unwrap_or_default();
        Upstream::compile(&facts, &endpoint_stats, previous)
    }
}

fn id(upstream: &Upstream, picked: &Picked) -> String {
    upstream.target(picked.index).instance.to_string()
}

/// Everything that calls without key reach in 500 tries.
fn reached(upstream: &Upstream) -> BTreeSet<String> {
    let pick = |seed| upstream.pick(&Ask::default(), 0, seed).unwrap();
    (0..500).map(|seed| id(upstream, &pick(seed))).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_client_keeps_to_its_subset_of_20() {
    let upstream = World::many(ServiceKind::Replicated, 300).compile(None);
    let kept: BTreeSet<_> =
        upstream.candidates().filter(|c| c.in_subset).map(|c| c.target.instance.to_string()).collect();
    assert_eq!(kept.len(), 20);
    assert_eq!(reached(&upstream), kept);
    let mut other = World::many(ServiceKind::Replicated, 300);
    other.client = 43;
    assert_ne!(reached(&other.compile(None)), kept, "another client has another subset");
}

#[test]
fn a_subset_of_0_means_all() {
    let mut world = World::many(ServiceKind::Replicated, 60);
    world.policy.balancing = Balancing { subset: 0, ..Balancing::default() };
    assert_eq!(reached(&world.compile(None)).len(), 60);
}

#[test]
fn counts_survive_new_snapshots() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "eu")]);
    let first = world.compile(None);
    let picked = first.pick(&Ask::default(), 0, 1).unwrap();
    first.begin(picked.index);
    world.endpoints.push(endpoint("c", "eu"));
    world.endpoints[0].weight = 2000;
    let second = world.compile(Some(&first));
    let outstanding = |u: &Upstream| u.candidates().map(|c| c.outstanding).sum::<u32>();
    assert_eq!(id(&second, &picked), id(&first, &picked));
    assert_eq!((outstanding(&first), outstanding(&second)), (1, 1));
    let unchanged = second.candidates().find(|c| c.target.instance.as_str() == "b").unwrap().index;
    assert!(
        Arc::ptr_eq(first.target(unchanged), second.target(unchanged)),
        "what did not change is the same"
    );
    second.finish(picked.index, Outcome::Ok, 0);
    assert_eq!(outstanding(&first), 0);
}

#[test]
fn a_server_that_was_asked_counts_the_callers_own_calls_too() {
    let upstream = World::replicated(&[("a", "eu")]).compile(None);
    let load = |cpu| LoadReport { requests: Some(3), cpu: Some(cpu), ..LoadReport::default() };
    let asked = |cpu, now| {
        upstream.hold(0).told(&PollState::default(), load(cpu), now);
        upstream.reported(0).unwrap().load
    };
    assert_eq!(asked(500, 1), load(500), "all three are of others");
    upstream.begin(0);
    upstream.begin(0);
    // As an answer to one of the two would say it.
    assert_eq!(asked(510, 2), LoadReport { requests: Some(2), ..load(510) });
}

#[test]
fn a_server_that_was_asked_earns_no_reward() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "eu")]);
    world.policy.balancing.score.reward = 100;
    let upstream = world.compile(None);
    let [a, b] = [0, 1].map(|index| upstream.hold(index));
    for now in 1..=50 {
        a.told(&PollState::default(), LoadReport { requests: Some(0), ..LoadReport::default() }, now);
    }
    assert_eq!(reached(&upstream), names(&["a", "b"]));
    (1..=50).for_each(|now| b.report(LoadReport { requests: Some(0), ..LoadReport::default() }, now));
    assert_eq!(reached(&upstream), names(&[b.target().instance.as_str()]));
}

#[test]
fn an_instance_in_two_records_counts_once_and_where_it_serves() {
    let mut world = World::replicated(&[("a", "us"), ("a", "eu"), ("b", "eu")]);
    world.endpoints[0].state = EndpointState::Lost;
    let upstream = world.compile(None);
    assert_eq!(upstream.candidates().count(), 2);
    assert_eq!(reached(&upstream), names(&["a", "b"]));
}

#[test]
fn routes_tell_target_class_timeout_and_idempotence() {
    let mut world = World::replicated(&[("a", "eu")]);
    let seconds = |secs| Timeouts { total: Some(Duration::from_secs(secs)), ..Timeouts::default() };
    let other = ServiceName::new("shop/cart-next").unwrap();
    let split = |weights: [u32; 2]| {
        vec![
            Target { service: world.name.clone(), weight: weights[0] },
            Target { service: other.clone(), weight: weights[1] },
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
    world.policy.routes = routes;
    world.policy.timeouts = seconds(9);
    let upstream = world.compile(None);
    let at = |path, seed| {
        upstream.route(&RequestView { host: "", path, method: "GET", headers: &(), grpc: false }, seed)
    };
    let all = at("/all/x", 1);
    assert_eq!((all.target, all.timeouts, all.idempotent), (&world.name, seconds(2), true));
    assert_eq!(all.class.map(Label::as_str), Some("heavy"));
    assert!((0..100).all(|seed| at("/none", seed).target == &other));
    let halves: BTreeSet<_> = (0..100).map(|seed| at("/half", seed).target.to_string()).collect();
    assert_eq!(halves.len(), 2);
    let default = at("/elsewhere", 1);
    assert_eq!((default.route, default.timeouts), (None, seconds(9)));
    let explained = upstream.explain(
        &RequestView { host: "", path: "/none", method: "GET", headers: &(), grpc: false },
        &Ask::default(),
        0,
        1,
    );
    assert_eq!((explained.target, explained.picked), (other, None), "the other service's snapshot goes on");
}

#[test]
fn an_explanation_says_where_here_is_and_leaves_no_line_empty() {
    let told = |world: &World| {
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let explained = world.compile(None).explain(&request, &Ask::default(), 0, 1);
        assert!(explained.steps.iter().all(|step| !step.detail.is_empty()), "{:?}", explained.steps);
        explained.steps.into_iter().find(|step| step.title == "region").unwrap().detail
    };
    let mut world = World::replicated(&[("a", "eu")]);
    assert_eq!(told(&world), "eu is here (0 ms): ring 0, 100.0 % of the capacity");
    world.endpoints.clear();
    assert_eq!(told(&world), "none has an endpoint");
}

fn a_state() -> impl Strategy<Value = EndpointState> {
    use EndpointState::{Draining, Lost, Serving, Starting};
    prop::sample::select(vec![Serving, Serving, Serving, Serving, Starting, Draining, Lost])
}

prop_compose! {
    fn a_world()(
        kind in prop::sample::select(vec![
            ServiceKind::Replicated, ServiceKind::Sharded, ServiceKind::ConsistentHash,
        ]),
        endpoints in prop::collection::vec(
            (prop::sample::select(vec!["eu", "near", "us", "asia", "moon"]), a_state(), 1_u32..3000), 0..60,
        ),
        subset in 0_u32..8, local_only in prop::bool::weighted(0.2), draining: bool, seed: u64,
    ) -> World {
        let mut random = Generator::new(seed);
        let endpoints = endpoints.into_iter().enumerate().map(|(i, (place, state, weight))| {
            Endpoint { state, weight, ..endpoint(&format!("i{i}"), place) }
        });
        let mut world = World::new(kind, endpoints.collect());
        world.policy.balancing.subset = subset;
        world.policy.locality.local_only = local_only;
        world.regions.regions.insert(region("near"), RegionInfo { draining, ..RegionInfo::default() });
        world.shards = Some(Arc::new(Shards::compile(&sharded::any_map(&world.endpoints, &mut random))));
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn explain_decides_as_pick_does_and_no_avoided_endpoint_is_taken_in_vain(
        world in a_world(), seed: u64, key in 0_u128..2000, role in prop::option::of(0_usize..3),
        busy in prop::collection::vec((0_u32..60, prop::bool::ANY), 0..80),
        avoid in prop::collection::vec(0_u32..60, 0..4),
    ) {
        let upstream = world.compile(None);
        for (index, fails) in busy {
            upstream.begin(index);
            if fails {
                upstream.finish(index, Outcome::Unreachable, 5);
            }
        }
        let role = role.map(sharded::role);
        let ask = Ask { key: Some(ShardKey(key)), role: role.as_ref(), avoid: &avoid };
        let picked = upstream.pick(&ask, 7, seed);
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let explained = upstream.explain(&request, &ask, 7, seed);
        prop_assert_eq!(explained.picked.as_ref(), Some(&picked));
        if let Ok(picked) = picked {
            let target = upstream.target(picked.index);
            let last = explained.steps.last().unwrap();
            prop_assert!(last.title == "pick" && last.detail.starts_with(target.instance.as_str()));
            prop_assert_ne!(target.state, EndpointState::Starting);
            prop_assert!(!world.policy.locality.local_only || target.location.region == world.location.region);
            if avoid.contains(&picked.index) {
                // Whatever the same call reaches with nothing to avoid must be avoided too.
                for other in 0..50 {
                    let free = upstream.pick(&Ask { avoid: &[], ..ask }, 7, other).unwrap();
                    prop_assert!(avoid.contains(&free.index));
                }
            }
        }
    }
}
