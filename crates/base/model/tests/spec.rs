//! Documents round-trip through validation, and errors in documents name their field.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{
    Abort, AcceptedTokens, Actions, Authorization, AuthorizationMode, AuthorizationRule, Backend, Balancing,
    BalancingPolicy, CallerMatch, ClientMatch, Condition, ConditionSubject, DefaultAuthorization,
    DefaultsScope, Delay, Endpoint, EndpointState, GatewayBackend, GatewayQuota, GatewayService, GrpcMatch,
    HeaderEdits, HeaderMatch, HealthCheck, HostMatch, HostType, Hosts, InstanceId, Invalid, KeyRange,
    KeySource, Label, LoadSignal, LocalTransport, Locality, Location, Match, Mirror, MtlsMode, Outliers,
    PathMatch, PathRewrite, Pattern, Policy, PolicyDefaults, PolicyField, Probe, ProgramSelector, Protocol,
    QueryMatch, RateLimit, Redirect, Region, RegionInfo, RegionShares, Regions, Replica, ReplicaState,
    Retries, Rewrite, Ring, Role, RoundTrips, Route, RouteSource, Scope, Score, Service, ServiceKind,
    ServiceName, Shard, ShardId, ShardKey, ShardMap, Share, Template, Tenant, TextMatch, Throttle, Timeouts,
    Traffic, TrafficMode, TrafficShares, ValueMatch, WorkloadEntry, Zone, spec::*,
};

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

fn full_balancing() -> Balancing {
    Balancing {
        policy: BalancingPolicy::LeastRequest,
        subset: 0,
        signal: LoadSignal::Metric("queue.length".into()),
        score: Score {
            smoothing: 10,
            half_life: Duration::from_secs(1),
            warm_up: 0,
            gain: 0,
            correction: 1,
            memory: Duration::from_secs(3600),
            poll: false,
            poll_after: Some(Duration::from_millis(1)),
            poll_ratio: 100,
            reward: 5,
        },
        outliers: Outliers {
            consecutive: 0,
            failure_percent: 0,
            min_samples: 5,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(1),
            most_percent: 100,
        },
        load_factor: 150,
    }
}

fn full_health_check() -> HealthCheck {
    HealthCheck {
        interval: Duration::from_secs(2),
        jitter_percent: 0,
        timeout: Duration::from_millis(300),
        rise: 1,
        fall: 4,
        minimum_samples: 5,
        ..HealthCheck::new(Probe::Http { path: "/healthz".into(), status: Some(204) })
    }
}

fn full_actions() -> Actions {
    let text = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let share = |text: &str| text.parse::<Share>().unwrap();
    Actions {
        role: Some(Role::new("primary").unwrap()),
        retry_on: vec![502, 504],
        split_key: vec![KeySource::Header("x-user".into()), KeySource::Query("user".into())],
        redistributes_empty: true,
        limit: Some(RateLimit { calls: 5, per: Duration::from_secs(1), burst: 5, scope: Scope::Caller }),
        redirect: None,
        abort: Some(Abort { share: share("0.5%"), status: 503 }),
        delay: Some(Delay { share: share("100%"), time: Duration::from_millis(20) }),
        rewrite: Rewrite {
            host: Some("cart.internal".into()),
            path: Some(PathRewrite::Prefix("/v2".into())),
        },
        request_headers: HeaderEdits {
            set: text("x-a", "1"),
            add: text("x-b", "2; q=1"),
            remove: vec!["x-c".into()],
        },
        response_headers: HeaderEdits { remove: vec!["server".into()], ..HeaderEdits::default() },
        attempt_timeout: Some(Duration::from_millis(100)),
        server_timeout: Some(Duration::from_millis(150)),
        hedge_after: Some(Duration::from_millis(50)),
        mirror: Some(Mirror { service: cart(), share: share("1%") }),
    }
}

fn full_match() -> Match {
    Match {
        clients: vec![ClientMatch::new("batch-*").unwrap()],
        hosts: vec![HostMatch::Exact("cart.local".into()), HostMatch::Suffix(".example.org".into())],
        path: Some(PathMatch::Prefix(String::new())),
        methods: vec!["GET".into()],
        headers: vec![
            HeaderMatch { name: "a".into(), value: TextMatch::Present },
            HeaderMatch { name: "b".into(), value: TextMatch::Exact("x".into()) },
            HeaderMatch { name: "c".into(), value: TextMatch::Prefix("y".into()) },
            HeaderMatch { name: "d".into(), value: TextMatch::Absent },
        ],
        query: vec![QueryMatch { name: "page".into(), value: TextMatch::Exact("1".into()) }],
        grpc: Some(GrpcMatch { service: "shop.v1.Cart".into(), method: Some("Get".into()) }),
    }
}

fn timeouts(ms: u64) -> Timeouts {
    let after = |more| Some(Duration::from_millis(ms + more));
    Timeouts { total: after(0), response_header: after(1), idle: after(2) }
}

/// A policy in which every field differs from its default.
fn full_policy() -> Policy {
    let route = Route {
        name: Label::new("read").unwrap(),
        matches: full_match(),
        split: [3, 0].map(|weight| Backend { service: cart(), weight }).into(),
        class: Some(Label::new("bulk").unwrap()),
        timeouts: timeouts(250),
        idempotent: true,
        actions: full_actions(),
    };
    let redirect = Redirect {
        https: Some(true),
        host: Some("docs.example.org".into()),
        port: Some(8443),
        path: Some(PathRewrite::Full("/new".into())),
        status: 308,
    };
    let path = |path| Match { path: Some(path), ..Match::default() };
    let moved = Route {
        matches: path(PathMatch::Template(Template::new("/users/{id}").unwrap())),
        actions: Actions { redirect: Some(redirect), ..Actions::default() },
        ..Route::new(Label::new("moved").unwrap())
    };
    let numbered = Route {
        matches: path(PathMatch::Regex(Pattern::new("/[0-9]+").unwrap())),
        ..Route::new(Label::new("numbered").unwrap())
    };
    Policy {
        routes: vec![route, moved, numbered],
        locality: Locality {
            zone_first: false,
            rings: vec![Ring::Region, Ring::Within(Duration::from_micros(1500)), Ring::Continent, Ring::Any],
            local_only: true,
        },
        balancing: full_balancing(),
        timeouts: timeouts(90_000),
        retries: Retries { attempts: 1, budget_percent: 0, budget_floor: 3 },
        limit: Some(RateLimit { calls: 10, per: Duration::from_secs(2), burst: 30, scope: Scope::Mesh }),
        key: vec![KeySource::Header("x-user".into()), KeySource::Cookie("sid".into())],
        role: Some(Role::new("secondary").unwrap()),
        health_check: Some(full_health_check()),
        lookaside: Some("picks.shop:7420".into()),
        traffic: Some(Box::new(full_traffic())),
        authorization: Some(Box::new(full_authorization())),
        mtls: MtlsMode::Permissive,
        local_transport: LocalTransport::Sidecar,
        accept_routes_from: vec![RouteSource::new("red/api").unwrap(), RouteSource::new("green/*").unwrap()],
        restated: BTreeSet::new(),
    }
}

fn full_traffic() -> Traffic {
    let shares = |to: &[(&str, &str)], dropped: &str| RegionShares {
        to: to.iter().map(|(name, share)| (region(name), share.parse().unwrap())).collect(),
        dropped: dropped.parse().unwrap(),
    };
    let eu = TrafficShares {
        default: Some(shares(&[("eu", "70%"), ("us", "30%")], "0%")),
        classes: [(Label::new("bulk").unwrap(), shares(&[("us", "87.5%")], "12.5%"))].into(),
    };
    Traffic {
        planner: None,
        mode: TrafficMode::Shadow,
        shares: [(region("eu"), eu)].into(),
        ..Traffic::default()
    }
}

fn checked(probe: Probe) -> Policy {
    Policy { health_check: Some(HealthCheck::new(probe)), ..Policy::default() }
}

fn full_map() -> ShardMap {
    let replica = |instance: &str, state| Replica {
        instance: InstanceId::new(instance).unwrap(),
        region: region("eu"),
        role: Role::new("Primary").unwrap(),
        state,
    };
    let shards = vec![
        Shard { id: ShardId(4), start: ShardKey(500), replicas: vec![replica("a", ReplicaState::Serving)] },
        Shard {
            id: ShardId(5),
            start: ShardKey(1 << 100),
            replicas: vec![replica("a", ReplicaState::Stopping), replica("b", ReplicaState::Starting)],
        },
    ];
    let interval = KeyRange { first: ShardKey(500), last: ShardKey(1 << 101) };
    ShardMap { version: 0, interval, shards }
}

fn full_topology() -> (Regions, RoundTrips) {
    let mut regions = Regions::default();
    let eu = RegionInfo { continent: "europe".into(), neighbours: vec![region("us")], draining: true };
    regions.regions.insert(region("eu"), eu);
    regions.regions.insert(region("us"), RegionInfo::default());
    let amount = |text: &str| text.parse::<fairmesh_model::Dollars>().unwrap();
    regions.egress = fairmesh_model::Egress {
        price: amount("$0.02"),
        prices: [((region("us"), region("eu")), amount("$0.05"))].into(),
        per_ms: Some(amount("$0.00001")),
        cap: Some(amount("$40")),
    };
    let mut round_trips = RoundTrips::default();
    round_trips.set(region("us"), region("eu"), Duration::from_micros(35_500));
    (regions, round_trips)
}

fn full_hosts() -> Hosts {
    let milan: HostType = "milan-64".parse().unwrap();
    let prefixes =
        vec![("fd00::/8".parse().unwrap(), milan.clone()), ("10.0.0.0/8".parse().unwrap(), milan.clone())];
    Hosts::new([(milan, 1250)].into(), prefixes).unwrap()
}

fn full_endpoint() -> Endpoint {
    Endpoint {
        mtls: false,
        instance: InstanceId::new("Cart-0:80").unwrap(),
        address: "[fd00::7]:80".parse().unwrap(),
        location: Location {
            region: region("eu"),
            zone: Some("eu-1".parse().unwrap()),
            cluster: Some("k8s".parse().unwrap()),
            host_type: Some("milan-64".parse().unwrap()),
        },
        state: EndpointState::Draining,
        weight: 2000,
        lease: Some(Duration::from_secs(10)),
        labels: [("a".to_owned(), "b".to_owned())].into(),
    }
}

fn condition(subject: ConditionSubject, excludes: bool) -> Condition {
    Condition { subject, excludes, values: vec![ValueMatch("members".into()), ValueMatch("team-*".into())] }
}

fn full_authorization() -> Authorization {
    let rule = |name: &str, denies| AuthorizationRule {
        name: Label::new(name).unwrap(),
        denies,
        from: ["shop/web", "shop/*", "spiffe://prod/*"].map(|text| CallerMatch::new(text).unwrap()).to_vec(),
        methods: vec!["GET".into()],
        paths: vec![PathMatch::Exact("/a".into()), PathMatch::Prefix("/b".into())],
        sources: vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        when: vec![
            condition(ConditionSubject::Claim(vec!["groups".into()]), false),
            condition(ConditionSubject::Claim(vec!["realm_access".into(), "roles".into()]), true),
            condition(ConditionSubject::Header("x-env".into()), false),
        ],
    };
    let everyone = AuthorizationRule::allowing(Label::new("everyone").unwrap(), Vec::new());
    Authorization {
        mode: AuthorizationMode::Audit,
        rules: vec![rule("some", false), rule("not", true), everyone],
        intermediaries: vec![CallerMatch::new("fairmesh/proxy/*").unwrap()],
        tokens: vec![AcceptedTokens { issuer: "https://idp.example".into(), audiences: vec!["cart".into()] }],
    }
}

fn full_workload() -> WorkloadEntry {
    let full = ProgramSelector {
        uid: Some(1001),
        gid: Some(1002),
        executable: Some("/usr/bin/cart".into()),
        cgroup: Some("/system.slice/cart.service".into()),
        network_namespace: Some("blue".into()),
    };
    let user = ProgramSelector { uid: Some(0), ..ProgramSelector::default() };
    WorkloadEntry { agents: vec![Label::new("web-1").unwrap()], programs: vec![full, user] }
}

/// A policy that explicitly states built-in values.
fn restated() -> Policy {
    use PolicyField::{Attempts, BudgetFloor, BudgetPercent, LocalTransport, Rings, Timeout, Traffic};
    Policy::default().restating([
        Timeout,
        Attempts,
        BudgetPercent,
        BudgetFloor,
        Rings,
        Traffic,
        LocalTransport,
    ])
}

#[test]
fn every_record_round_trips_through_its_document() {
    let service = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Grpc,
        virtual_address: Some("10.1.2.3:80".parse().unwrap()),
        identity: Some("spiffe://partner/shop/cart".parse().unwrap()),
    };
    let (regions, round_trips) = full_topology();
    let resources = [
        Resource::Service(cart(), service),
        Resource::Policy(cart(), full_policy()),
        Resource::Policy(cart(), Policy::default()),
        Resource::Policy(cart(), restated()),
        Resource::PolicyDefaults(DefaultsScope::Mesh, PolicyDefaults::new(&restated()).unwrap()),
        Resource::PolicyDefaults(
            DefaultsScope::Tenant(cart().tenant),
            PolicyDefaults::new(&Policy { timeouts: timeouts(7), ..Policy::default() }).unwrap(),
        ),
        Resource::Policy(cart(), checked(Probe::Tcp)),
        Resource::Policy(cart(), checked(Probe::Grpc { service: "shop.v1.Cart".into() })),
        Resource::Topology(regions, round_trips),
        Resource::Hosts(full_hosts()),
        Resource::ShardMap(cart(), full_map()),
        Resource::ShardMap(
            cart(),
            ShardMap { interval: KeyRange { first: ShardKey(500), ..KeyRange::ALL }, ..full_map() },
        ),
        Resource::Endpoints(cart(), vec![full_endpoint()]),
        Resource::Workload(cart(), full_workload()),
        Resource::Authorization(DefaultAuthorization::Deny),
    ];
    for resource in resources.into_iter().chain(of_gateways()) {
        assert_eq!(Document::from(&resource).validate(), Ok(resource));
    }
}

fn of_gateways() -> [Resource; 3] {
    let backend = GatewayBackend {
        zone: Zone::new("eu-a").unwrap(),
        capacity: 7,
        replicas: ["10.0.0.1:7440".parse().unwrap(), "10.0.0.2:7440".parse().unwrap()].into(),
        is_closed: true,
        is_sandbox: true,
    };
    let quota = GatewayQuota {
        connections: Some(1),
        handshakes_per_second: Some(2),
        requests: Some(3),
        services: None,
        routes: Some(5),
        backends: Some(6),
    };
    let service = GatewayService {
        home_zone: Zone::new("eu-a").unwrap(),
        backends: 5,
        grows: false,
        throttle: Throttle::Agreed,
    };
    [
        Resource::GatewayBackend(Label::new("gw-1").unwrap(), backend),
        Resource::GatewayQuota(Tenant::new("shop").unwrap(), quota),
        Resource::GatewayService(cart(), service),
    ]
}

#[test]
fn omitted_document_fields_have_defaults() {
    let spec = PolicySpec { service: "shop/cart".into(), ..PolicySpec::default() };
    assert_eq!(spec.validate(), Ok((cart(), Policy::default())));
    assert_eq!(PolicySpec::of(&cart(), &Policy::default()), spec);
}

/// The field in the error of a validation.
fn refused<T: std::fmt::Debug>(resource: Result<T, Invalid>) -> String {
    let refusal = resource.unwrap_err();
    assert!(!refusal.hint.is_empty(), "{refusal}");
    refusal.field
}

/// The field in the error of the full policy after an edit.
fn policy(edit: fn(&mut PolicySpec)) -> String {
    let mut spec = PolicySpec::of(&cart(), &full_policy());
    edit(&mut spec);
    refused(spec.validate())
}

#[test]
fn document_error_names_field_as_written_in_yaml() {
    assert_eq!(policy(|p| p.service = "cart".into()), "service");
    assert_eq!(policy(|p| p.timeout = Some("15".into())), "timeout");
    assert_eq!(policy(|p| p.idle_timeout = Some("0s".into())), "idleTimeout");
    assert_eq!(
        policy(|p| p.routes[0].response_header_timeout = Some("1us".into())),
        "routes[0].responseHeaderTimeout"
    );
    assert_eq!(policy(|p| p.locality.rings = vec!["35ms".into(), "5ms".into()]), "locality.rings[1]");
    assert_eq!(policy(|p| p.locality.rings = vec!["near".into()]), "locality.rings[0]");
    let rings = |rings: &[&str]| {
        let locality = LocalitySpec {
            rings: rings.iter().map(|ring| (*ring).to_owned()).collect(),
            ..LocalitySpec::default()
        };
        refused(PolicySpec { service: "shop/cart".into(), locality, ..PolicySpec::default() }.validate())
    };
    assert_eq!(rings(&["5ms", "region"]), "locality.rings[1]");
    assert_eq!(rings(&["region", "any", "continent"]), "locality.rings[2]");
    assert_eq!(rings(&["region", "continent", "neighbours", "continent"]), "locality.rings[3]");
    assert_eq!(rings(&["35ms", "continent", "35ms"]), "locality.rings[2]");
    assert_eq!(policy(|p| p.routes[0].matches.hosts = vec!["a:80".into()]), "routes[0].match.hosts[0]");
    assert_eq!(policy(|p| p.routes[0].matches.path = Some(PathSpec::default())), "routes[0].match.path");
    assert_eq!(policy(|p| p.routes[0].matches.headers[1].present = Some(true)), "routes[0].match.headers[1]");
    assert_eq!(policy(|p| p.routes[0].split[0].service = "x".into()), "routes[0].split[0].service");
    assert_eq!(policy(|p| p.retries.attempts = Some(0)), "retries.attempts");
}

#[test]
fn document_error_names_field_of_route_action() {
    let path = |p: &mut PolicySpec, spec: PathSpec| p.routes[0].matches.path = Some(spec);
    let regex = |text: &str| PathSpec { regex: Some(text.into()), ..PathSpec::default() };
    let mut spec = PolicySpec::of(&cart(), &full_policy());
    path(&mut spec, regex("/("));
    assert_eq!(refused(spec.validate()), "routes[0].match.path.regex");
    path(&mut spec, regex("/.*"));
    assert_eq!(refused(spec.validate()), "routes[0].rewrite.path.prefix", "there is no prefix to replace");
    path(&mut spec, PathSpec { template: Some("/users".into()), ..PathSpec::default() });
    assert_eq!(refused(spec.validate()), "routes[0].match.path.template");
    assert_eq!(policy(|p| p.routes[0].matches.clients[0] = "*".into()), "routes[0].match.clients[0]");
    assert_eq!(policy(|p| p.routes[0].matches.query[0].name.clear()), "routes[0].match.query[0].name");
    let set = |name: &str| [(name.to_owned(), "1".to_owned())].into();
    let mut spec = PolicySpec::of(&cart(), &full_policy());
    spec.routes[0].headers.request.set = set("Content-Length");
    assert_eq!(refused(spec.validate()), "routes[0].headers.request.set");
    assert_eq!(
        policy(|p| p.routes[0].headers.response.remove.push("Transfer-Encoding".into())),
        "routes[0].headers.response.remove"
    );
    assert_eq!(
        policy(|p| p.routes[0].fault.abort.as_mut().unwrap().status = 200),
        "routes[0].fault.abort.status"
    );
    assert_eq!(
        policy(|p| p.routes[0].fault.delay.as_mut().unwrap().share = "101%".into()),
        "routes[0].fault.delay.share"
    );
    assert_eq!(
        policy(|p| p.routes[0].mirror.as_mut().unwrap().service = "x".into()),
        "routes[0].mirror.service"
    );
    assert_eq!(policy(|p| p.routes[0].hedge.as_mut().unwrap().after = "0s".into()), "routes[0].hedge.after");
    assert_eq!(policy(|p| p.routes[0].attempt_timeout = Some("2h".into())), "routes[0].attemptTimeout");
    assert_eq!(policy(|p| p.routes[0].limit.as_mut().unwrap().calls = 0), "routes[0].limit.calls");
    assert_eq!(policy(|p| p.limit.as_mut().unwrap().burst = Some(0)), "limit.burst");
    assert_eq!(
        policy(|p| p.routes[1].redirect.as_mut().unwrap().status = Some(200)),
        "routes[1].redirect.status"
    );
    assert_eq!(policy(|p| p.routes[1].redirect = Some(RedirectSpec::default())), "routes[1].redirect");
    assert_eq!(policy(|p| p.routes[1].attempt_timeout = Some("1s".into())), "routes[1].redirect");
    assert_eq!(policy(|p| p.routes[1].split = p.routes[0].split.clone()), "routes[1].split");
    assert_eq!(policy(|p| p.key = KeySpecs(vec![KeySpec::default()])), "key");
}

#[test]
fn document_error_names_field_of_health_check() {
    let check = |edit: fn(&mut HealthCheckSpec)| {
        let mut spec = PolicySpec::of(&cart(), &full_policy());
        edit(spec.health_check.as_mut().unwrap());
        refused(spec.validate())
    };
    assert_eq!(check(|c| c.tcp = Some(TcpProbeSpec {})), "healthCheck");
    assert_eq!(check(|c| c.http = None), "healthCheck");
    assert_eq!(check(|c| c.interval = Some("5".into())), "healthCheck.interval");
    assert_eq!(check(|c| c.fall = Some(0)), "healthCheck.fall");
}

#[test]
fn document_error_names_field_of_balancing() {
    assert_eq!(policy(|p| p.balancing.policy = Some("fair".into())), "balancing.policy");
    assert_eq!(policy(|p| p.balancing.signal = Some("memory".into())), "balancing.signal");
    assert_eq!(policy(|p| p.balancing.signal = Some("metric:".into())), "balancing.signal");
    assert_eq!(policy(|p| p.balancing.load_factor = Some(100)), "balancing.loadFactor");
    assert_eq!(policy(|p| p.balancing.score.half_life = Some("5".into())), "balancing.score.halfLife");
    assert_eq!(policy(|p| p.balancing.score.correction = Some(9)), "balancing.score.correction");
    assert_eq!(policy(|p| p.balancing.score.poll_after = Some("2m".into())), "balancing.score.pollAfter");
    assert_eq!(policy(|p| p.balancing.score.poll_ratio = Some(0)), "balancing.score.pollRatio");
    assert_eq!(policy(|p| p.balancing.outliers.longest = Some("1ms".into())), "balancing.outliers.longest");
}

#[test]
fn every_balancing_policy_and_load_signal_parses_as_displayed() {
    for policy in BalancingPolicy::ALL {
        assert_eq!(policy.as_str().parse(), Ok(policy));
    }
    for signal in ["auto", "requests", "cpu", "metric:jobs"] {
        assert_eq!(signal.parse::<LoadSignal>().unwrap().to_string(), signal);
    }
}

#[test]
fn topology_with_undeclared_region_is_refused() {
    let topology = |edit: fn(&mut TopologySpec)| {
        let (regions, round_trips) = full_topology();
        let mut spec = TopologySpec::of(&regions, &round_trips);
        edit(&mut spec);
        refused(spec.validate())
    };
    assert_eq!(topology(|t| t.round_trips[0].between[1] = "asia".into()), "roundTrips[0].between[1]");
    assert_eq!(topology(|t| t.round_trips[0].between[1] = "eu".into()), "roundTrips[0].between");
    assert_eq!(topology(|t| t.round_trips[0].rtt = "0ms".into()), "roundTrips[0].rtt");
    assert_eq!(topology(|t| t.round_trips.push(t.round_trips[0].clone())), "roundTrips[1].between");
    assert_eq!(topology(|t| t.regions[0].neighbours = vec!["asia".into()]), "regions.eu.neighbours");
    assert_eq!(topology(|t| t.regions[1].name = "eu".into()), "regions[1].name");
    let egress = |edit: fn(&mut EgressSpec)| {
        let (regions, round_trips) = full_topology();
        let mut spec = TopologySpec::of(&regions, &round_trips);
        edit(spec.egress.as_mut().unwrap());
        refused(spec.validate())
    };
    assert_eq!(egress(|e| e.prices[0].to = "asia".into()), "egress.prices");
    assert_eq!(egress(|e| e.prices[0].to = "us".into()), "egress.prices");
    assert_eq!(egress(|e| e.prices[0].price = "free".into()), "egress.prices[0].price");
    assert_eq!(egress(|e| e.prices.push(e.prices[0].clone())), "egress.prices[1]");
    assert_eq!(egress(|e| e.dollars_per_ms = Some("0".into())), "egress.dollarsPerMs");
    assert_eq!(egress(|e| e.cap = Some("-1".into())), "egress.cap");
}

#[test]
fn hosts_with_undeclared_type_are_refused() {
    let hosts = |edit: fn(&mut HostsSpec)| {
        let mut spec = HostsSpec::of(&full_hosts());
        edit(&mut spec);
        refused(spec.validate())
    };
    assert_eq!(hosts(|h| h.types[0].speed = 99), "types[0].speed");
    assert_eq!(hosts(|h| h.types[0].name = "Milan".into()), "types[0].name");
    assert_eq!(hosts(|h| h.types.push(h.types[0].clone())), "types[1].name");
    assert_eq!(hosts(|h| h.prefixes[1].prefix = "10.0.0.0".into()), "prefixes[1].prefix");
    assert_eq!(hosts(|h| h.prefixes[1].host_type = "rome".into()), "prefixes[1].hostType");
    assert_eq!(hosts(|h| h.prefixes.push(h.prefixes[1].clone())), "prefixes[2].prefix");
}

#[test]
fn durations_parse_as_displayed_and_require_unit() {
    for (text, micros) in [("35ms", 35_000), ("1500us", 1_500), ("15s", 15_000_000), ("2m", 120_000_000)] {
        let duration = Duration::from_micros(micros);
        assert_eq!(read_duration(text), Ok(duration));
        assert_eq!(write_duration(duration), text);
    }
    assert_eq!(write_duration(Duration::from_millis(1500)), "1500ms");
    for wrong in ["", "35", "ms", "1.5s", "-1s", "35 parsecs", "99999999999999h"] {
        assert!(read_duration(wrong).is_err(), "{wrong}");
    }
    assert!(read_duration("35").unwrap_err().hint.contains("35s"));
}

#[test]
fn document_error_names_key_source_and_ring() {
    assert_eq!(policy(|p| p.key = KeySpecs(vec![KeySpec::default(); 2])), "key[0]");
    assert_eq!(policy(|p| p.locality.rings = vec!["zone".into()]), "locality.rings");
    assert_eq!(policy(|p| p.locality.rings = vec!["region".into(), "zone".into()]), "locality.rings[1]");
}
