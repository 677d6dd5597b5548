use fairmesh_model::{Abort, Actions, KeySource, PathMatch, RateLimit, RouteSource, Scope, Share};

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

/// Returns how many of 100 simultaneous calls are admitted.
fn admitted(table: &ServiceTable, path: &str) -> usize {
    let routed = table.route(&request(path), 0);
    (0..100).filter(|_| table.admit(&routed, SECOND).is_ok()).count()
}

#[test]
fn service_and_route_rate_limits_apply_and_survive_other_changes() {
    let mut fleet = Fleet::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    let first = fleet.compile(None);
    assert_eq!(admitted(&first, "/"), 100, "there is no limit");
    fleet.policy.limit = Some(limited(5));
    fleet.policy.routes = vec![below("/few", Actions { limit: Some(limited(3)), ..Actions::default() })];
    let second = fleet.compile(Some(&first));
    assert_eq!(admitted(&second, "/few"), 3);
    assert_eq!(admitted(&second, "/"), 2, "calls that the route admitted count for the service");
    fleet.endpoints.push(endpoint("b", "eu"));
    let third = fleet.compile(Some(&second));
    assert_eq!((admitted(&third, "/few"), admitted(&third, "/")), (0, 0), "a new endpoint fills no bucket");
    fleet.policy.limit = Some(limited(7));
    let fourth = fleet.compile(Some(&third));
    assert_eq!((admitted(&fourth, "/few"), admitted(&fourth, "/")), (0, 7), "a changed limit starts afresh");
    fleet.policy.limit = None;
    let last = fleet.compile(Some(&fourth));
    assert_eq!((admitted(&last, "/few"), admitted(&last, "/")), (0, 100));
}

#[test]
fn call_rejected_by_service_rate_limit_refunds_route_rate_limit() {
    let mut fleet = Fleet::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    fleet.policy.limit = Some(limited(2));
    fleet.policy.routes = vec![below("/few", Actions { limit: Some(limited(3)), ..Actions::default() })];
    let both = fleet.compile(None);
    assert_eq!(admitted(&both, "/few"), 2);
    fleet.policy.limit = None;
    assert_eq!(admitted(&fleet.compile(Some(&both)), "/few"), 1);
}

#[test]
fn call_key_is_read_from_sources_named_in_policy() {
    let endpoints: Vec<_> = ["a", "b", "c"].into_iter().map(|id| endpoint(id, "eu")).collect();
    let mut fleet = Fleet::new(ServiceKind::ConsistentHash, endpoints.clone());
    fleet.policy.key = vec![KeySource::Query("user".into())];
    let table = fleet.compile(None);
    let key = table.key(&request("/?user=ann"));
    assert_eq!(key, Some(ShardKey(hash_text("ann").into())));
    let picked = |seed| table.pick(&PickParams { key, ..PickParams::default() }, 1, seed).unwrap().index;
    assert!((1..50).all(|seed| picked(seed) == picked(0)), "a session stays");
    assert_eq!(table.key(&request("/")), None);
    let explanation = table.explain(&request("/?user=ann"), &PickParams::default(), 1, 0);
    assert_eq!((explanation.key, explanation.picked.unwrap().unwrap().index), (key, picked(0)));
    fleet.service.kind = ServiceKind::Replicated;
    assert_eq!(fleet.compile(None).key(&request("/?user=ann")), None, "replicated services have no key");
}

#[test]
fn explain_lists_route_actions_without_counting_call() {
    let mut fleet = Fleet::new(ServiceKind::Replicated, vec![endpoint("a", "eu")]);
    let abort = Some(Abort { share: Share::ALL, status: 503 });
    fleet.policy.routes =
        vec![below("/few", Actions { limit: Some(limited(3)), abort, ..Actions::default() })];
    let table = fleet.compile(None);
    for _ in 0..10 {
        let explanation = table.explain(&request("/few"), &PickParams::default(), SECOND, 0);
        assert_eq!(
            (explanation.direct_response, explanation.picked),
            (Some(DirectResponse::Abort { status: 503 }), None)
        );
        let words: Vec<_> = explanation.steps.iter().map(|step| (step.title, step.detail.as_str())).collect();
        assert_eq!(words[0].0, "route");
        assert!(
            words[1].0 == "action"
                && words[1].1.contains("3 calls in 1s")
                && words[1].1.ends_with("3 may pass now"),
            "{words:?}"
        );
        assert!(words[2].0 == "action" && words[2].1.contains("503"), "{words:?}");
    }
    assert_eq!(admitted(&table, "/few"), 3);
}

#[test]
fn route_of_another_tenant_is_refused_without_consent_of_target() {
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    let [own, other] = ["shop/web", "red/api"].map(|name| ServiceName::new(name).unwrap());
    let pick = |fleet: &Fleet, from: &ServiceName| {
        let ask = PickParams { routed_from: Some(from), ..PickParams::default() };
        let table = fleet.compile(None);
        let explained = table.explain_pick(&ask, 1, 0);
        assert_eq!(table.pick(&ask, 1, 0).is_ok(), explained.picked.unwrap().is_ok());
        (table.pick(&ask, 1, 0).map_err(|why| *why), explained.steps[0].detail.clone())
    };
    assert!(pick(&fleet, &own).0.is_ok(), "one tenant");
    let (refused, why) = pick(&fleet, &other);
    assert_eq!(refused, Err(PickError::RouteNotAccepted { from: other.clone() }));
    assert_eq!(
        why,
        "the policy of shop/cart does not accept routes from red/api, which is of another tenant"
    );
    fleet.policy.accept_routes_from = vec![RouteSource::new("red/*").unwrap()];
    let (accepted, why) = pick(&fleet, &other);
    assert!(accepted.is_ok() && why.contains("accepts routes from red/api"), "{why}");
    let table = fleet.compile(None);
    assert!(fleet.recompile(&table).accept_routes_from(&other).is_ok(), "the rest of the policy is kept");
}

#[test]
fn kernel_leaves_routes_to_another_tenant_to_proxy() {
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    let arms = |fleet: &Fleet| fleet.compile(None).route_numbers("cart.shop").arms.len();
    for (service, sent) in [("shop/next", 1), ("red/api", 0)] {
        let split = vec![Backend { service: ServiceName::new(service).unwrap(), weight: 1 }];
        fleet.policy.routes = vec![Route { split, ..below("/", Actions::default()) }];
        assert_eq!(arms(&fleet), sent, "{service}");
    }
}
