use fairmesh_model::{Abort, Actions, KeySource, PathMatch, RateLimit, Scope, Share};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn limited(calls: u32) -> RateLimit {
    RateLimit { calls, per: Duration::from_secs(1), burst: calls, scope: Scope::Caller }
}

fn below(path: &str, actions: Actions) -> Route {
    let path = Some(PathMatch::Prefix(path.into()));
    Route { matches: Match { path, ..Match::default() }, actions, ..Route::new(Label::new("one").unwrap()) }
}

fn request(path: &str) -> RequestView<'_, ()> {
    RequestView { host: "", path, method: "GET", headers: &(), grpc: false }
}

/// How many of many calls pass at once.
fn admitted(upstream: &Upstream, path: &str) -> usize {
    let routed = upstream.route(&request(path), 0);
    (0..100).filter(|_| upstream.admit(&routed, SECOND).is_ok()).count()
}

#[test]
fn limits_of_service_and_route_both_hold_and_outlive_other_changes() {
    let mut world = World::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    let first = world.compile(None);
    assert_eq!(admitted(&first, "/"), 100, "there is no limit");
    world.policy.limit = Some(limited(5));
    world.policy.routes = vec![below("/few", Actions { limit: Some(limited(3)), ..Actions::default() })];
    let second = world.compile(Some(&first));
    assert_eq!(admitted(&second, "/few"), 3);
    assert_eq!(admitted(&second, "/"), 2, "what the route let through counts for the service");
    world.endpoints.push(endpoint("b", "eu"));
    let third = world.compile(Some(&second));
    assert_eq!((admitted(&third, "/few"), admitted(&third, "/")), (0, 0), "a new endpoint fills no bucket");
    world.policy.limit = Some(limited(7));
    let fourth = world.compile(Some(&third));
    assert_eq!((admitted(&fourth, "/few"), admitted(&fourth, "/")), (0, 7), "another limit counts anew");
    world.policy.limit = None;
    let last = world.compile(Some(&fourth));
    assert_eq!((admitted(&last, "/few"), admitted(&last, "/")), (0, 100));
}

#[test]
fn a_call_that_the_service_refuses_takes_nothing_from_the_route() {
    let mut world = World::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    world.policy.limit = Some(limited(2));
    world.policy.routes = vec![below("/few", Actions { limit: Some(limited(3)), ..Actions::default() })];
    let both = world.compile(None);
    assert_eq!(admitted(&both, "/few"), 2);
    world.policy.limit = None;
    assert_eq!(admitted(&world.compile(Some(&both)), "/few"), 1);
}

#[test]
fn the_policy_reads_the_key_of_services_called_by_key() {
    let endpoints: Vec<_> = ["a", "b", "c"].into_iter().map(|id| endpoint(id, "eu")).collect();
    let mut world = World::new(ServiceKind::ConsistentHash, endpoints.clone());
    world.policy.key = Some(KeySource::Query("user".into()));
    let upstream = world.compile(None);
    let key = upstream.key(&request("/?user=ann"));
    assert_eq!(key, Some(ShardKey(hash_text("ann").into())));
    let picked = |seed| upstream.pick(&Ask { key, ..Ask::default() }, 1, seed).unwrap().index;
    assert!((1..50).all(|seed| picked(seed) == picked(0)), "a session stays");
    assert_eq!(upstream.key(&request("/")), None);
    let told = upstream.explain(&request("/?user=ann"), &Ask::default(), 1, 0);
    assert_eq!((told.key, told.picked.unwrap().unwrap().index), (key, picked(0)));
    world.service.kind = ServiceKind::Replicated;
    assert_eq!(world.compile(None).key(&request("/?user=ann")), None, "it has no use for one");
}

#[test]
fn explaining_names_the_route_and_what_it_does_and_counts_nothing() {
    let mut world = World::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    let abort = Some(Abort { share: Share::ALL, status: 503 });
    world.policy.routes =
        vec![below("/few", Actions { limit: Some(limited(3)), abort, ..Actions::default() })];
    let upstream = world.compile(None);
    for _ in 0..10 {
        let told = upstream.explain(&request("/few"), &Ask::default(), SECOND, 0);
        assert_eq!((told.instead, told.picked), (Some(Instead::Abort { status: 503 }), None));
        let words: Vec<_> = told.steps.iter().map(|step| (step.title, step.detail.as_str())).collect();
        assert_eq!(words[0].0, "route");
        assert!(
            words[1].0 == "action"
                && words[1].1.contains("3 calls in 1s")
                && words[1].1.ends_with("3 may pass now"),
            "{words:?}"
        );
        assert!(words[2].0 == "action" && words[2].1.contains("503"), "{words:?}");
    }
    assert_eq!(admitted(&upstream, "/few"), 3);
}
