//! Arbitrary valid records, for property tests.

mod gateway;
mod traffic;
mod trust;

use std::{net::IpAddr, time::Duration};

use fairmesh_model::{
    access::{AccessRole, RoleBinding, Subject, UidRange, WorkloadBounds},
    *,
};
use gateway::gateway_entry;
use proptest::{collection, option, prelude::*, sample::select};
use traffic::{region_table, traffic};
use trust::{federated_domains, joined_agent, revocations, token_issuers, trust_bundle};

fn name<N: std::str::FromStr<Err = Invalid> + std::fmt::Debug>() -> impl Strategy<Value = N> {
    "[a-z0-9][a-z0-9._-]{0,12}".prop_map(|text| text.parse().unwrap())
}

fn service_name() -> impl Strategy<Value = ServiceName> {
    (name(), name()).prop_map(|(tenant, service)| ServiceName { tenant, service })
}

fn micros(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_micros)
}

fn address() -> impl Strategy<Value = std::net::SocketAddr> {
    let callable = |ip: &std::net::IpAddr| {
        let ip = ip.to_canonical();
        let is_link_local = match ip {
            std::net::IpAddr::V4(ip) => ip.is_link_local(),
            std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        !ip.is_multicast() && !ip.is_unspecified() && ip != std::net::Ipv4Addr::BROADCAST && !is_link_local
    };
    (any::<std::net::IpAddr>().prop_filter("of one machine", callable), 1..=u16::MAX).prop_map(Into::into)
}

pub(super) fn service() -> impl Strategy<Value = Service> {
    let kinds = vec![ServiceKind::Replicated, ServiceKind::Sharded, ServiceKind::ConsistentHash];
    let protocols = vec![Protocol::Http1, Protocol::Http2, Protocol::Grpc];
    let identity = (name(), service_name())
        .prop_map(|(domain, service)| SpiffeId { domain, path: SpiffePath::Service(service) });
    (select(kinds), select(protocols), option::of(address()), option::of(identity)).prop_map(
        |(kind, protocol, virtual_address, identity)| Service { kind, protocol, virtual_address, identity },
    )
}

fn location() -> impl Strategy<Value = Location> {
    (name(), option::of(name()), option::of(name()), option::of(name()))
        .prop_map(|(region, zone, cluster, host_type)| Location { region, zone, cluster, host_type })
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    use EndpointState::*;
    let labels = collection::btree_map("[a-z]{1,8}", ".{0,8}", 0..4);
    let lease = option::of((1000..=3_600_000_u64).prop_map(Duration::from_millis));
    let state = select(vec![Starting, Serving, Draining, Lost]);
    (name(), address(), location(), state, 1..=MAX_WEIGHT, lease, any::<bool>(), labels).prop_map(
        |(instance, address, location, state, weight, lease, mtls, labels)| Endpoint {
            instance,
            address,
            location,
            state,
            weight,
            lease,
            mtls,
            labels,
        },
    )
}

fn matches() -> impl Strategy<Value = Match> {
    let host = prop_oneof![
        "[a-z.]{1,8}".prop_map(HostMatch::Exact),
        "[a-z]{1,8}".prop_map(|domain| HostMatch::Suffix(format!(".{domain}"))),
    ];
    let path = prop_oneof![
        "/[a-z/]{0,8}".prop_map(PathMatch::Exact),
        "(/[a-z]{1,8}){0,2}".prop_map(PathMatch::Prefix),
        "(/[a-z]{1,8}){0,2}/[{]id[}](/[a-z]{1,8}){0,2}"
            .prop_map(|text| PathMatch::Template(Template::new(&text).unwrap())),
        "/[a-z]{1,8}[+*]".prop_map(|text| PathMatch::Regex(Pattern::new(text).unwrap())),
    ];
    let value = || {
        prop_oneof![
            Just(TextMatch::Present),
            Just(TextMatch::Absent),
            ".{0,4}".prop_map(TextMatch::Exact),
            ".{0,4}".prop_map(TextMatch::Prefix),
            "[a-z]{1,4}[+*]".prop_map(|text| TextMatch::Regex(Pattern::new(text).unwrap())),
        ]
    };
    let header = ("[a-z-]{1,8}", value()).prop_map(|(name, value)| HeaderMatch { name, value });
    let query = (".{1,8}", value()).prop_map(|(name, value)| QueryMatch { name, value });
    let grpc = ("[a-z.]{1,8}", option::of("[A-Za-z]{1,8}"))
        .prop_map(|(service, method)| GrpcMatch { service, method });
    let client =
        select(vec!["batch-*", "*/checkout", "web"]).prop_map(|text| ClientMatch::new(text).unwrap());
    let hosts = (collection::vec(client, 0..2), collection::vec(host, 0..3));
    let methods = collection::vec("[A-Z]{1,6}", 0..3);
    let texts = (collection::vec(header, 0..3), collection::vec(query, 0..3));
    (hosts, option::of(path), methods, texts, option::of(grpc)).prop_map(
        |((clients, hosts), path, methods, (headers, query), grpc)| Match {
            clients,
            hosts,
            path,
            methods,
            headers,
            query,
            grpc,
        },
    )
}

fn share() -> impl Strategy<Value = Share> {
    (0..=1_000_000_u32).prop_map(|millionths| Share::of_millionths(millionths).unwrap())
}

fn time() -> impl Strategy<Value = Duration> {
    micros(1000..3_600_000_000)
}

fn limit() -> impl Strategy<Value = RateLimit> {
    let scope = prop_oneof![Just(Scope::Caller), Just(Scope::Mesh)];
    (1..=u32::MAX, time(), 1..=u32::MAX, scope).prop_map(|(calls, per, burst, scope)| RateLimit {
        calls,
        per,
        burst,
        scope,
    })
}

fn full_path() -> impl Strategy<Value = PathRewrite> {
    "(/[a-z]{1,8}){1,2}".prop_map(PathRewrite::Full)
}

fn edits() -> impl Strategy<Value = HeaderEdits> {
    let some = |name: &'static str| collection::btree_map(name, "[a-z=;]{0,8}", 0..3);
    (some("x-s[a-z]{1,5}"), some("x-a[a-z]{1,5}"), collection::vec("x-r[a-z]{1,5}", 0..1))
        .prop_map(|(set, add, remove)| HeaderEdits { set, add, remove })
}

fn actions() -> impl Strategy<Value = Actions> {
    let redirect = (
        option::of(any::<bool>()),
        option::of(1..=u16::MAX),
        full_path(),
        select(vec![301, 302, 303, 307, 308]),
    )
        .prop_map(|(https, port, path, status)| Redirect {
            https,
            host: port.map(|port| format!("h{port}.org")),
            port,
            path: Some(path),
            status,
        });
    let redirected = (option::of(limit()), redirect).prop_map(|(limit, redirect)| Actions {
        limit,
        redirect: Some(redirect),
        ..Actions::default()
    });
    let abort = (share(), 400..=599_u16).prop_map(|(share, status)| Abort { share, status });
    let delay = (share(), time()).prop_map(|(share, time)| Delay { share, time });
    let mirror = (service_name(), share()).prop_map(|(service, share)| Mirror { service, share });
    let rewrite =
        (option::of("[a-z]{1,8}"), option::of(full_path())).prop_map(|(host, path)| Rewrite { host, path });
    let times = (option::of(time()), option::of(time()), option::of(time()));
    let faults = (option::of(limit()), option::of(abort), option::of(delay), option::of(mirror));
    let statuses = collection::vec(400..=599_u16, 0..3);
    let keys = (collection::vec(key_source(), 0..3), option::of(name()), statuses);
    let sent = (faults, rewrite, edits(), edits(), times, keys).prop_map(
        |((limit, abort, delay, mirror), rewrite, request_headers, response_headers, times, keys)| {
            let (split_key, role, retry_on) = keys;
            Actions {
                limit,
                redirect: None,
                abort,
                delay,
                rewrite,
                request_headers,
                response_headers,
                attempt_timeout: times.0,
                server_timeout: times.1,
                hedge_after: times.2,
                mirror,
                role,
                retry_on,
                split_key,
                redistributes_empty: false,
            }
        },
    );
    prop_oneof![Just(Actions::default()), redirected, sent]
}

fn key_source() -> impl Strategy<Value = KeySource> {
    prop_oneof![
        "[a-z-]{1,8}".prop_map(KeySource::Header),
        "[A-Za-z]{1,8}".prop_map(KeySource::Cookie),
        ".{1,8}".prop_map(KeySource::Query),
    ]
}

fn timeouts() -> impl Strategy<Value = Timeouts> {
    let time = || option::of(micros(1000..u64::MAX / 1000));
    (time(), time(), time()).prop_map(|(total, response_header, idle)| Timeouts {
        total,
        response_header,
        idle,
    })
}

fn route() -> impl Strategy<Value = Route> {
    let target = (service_name(), 1..1000_u32).prop_map(|(service, weight)| Backend { service, weight });
    let terms = (option::of(name()), timeouts(), any::<bool>());
    (name(), matches(), collection::vec(target, 0..3), terms, actions()).prop_map(
        |(name, matches, split, (class, timeouts, idempotent), actions)| {
            // A redirect responds by itself, so such a route has no split.
            let split = if actions.redirect.is_some() { Vec::new() } else { split };
            Route { name, matches, split, class, timeouts, idempotent, actions }
        },
    )
}

fn locality() -> impl Strategy<Value = Locality> {
    let bounded = collection::btree_set(1..10_000_000_u64, 0..4);
    let rings = (any::<bool>(), bounded, any::<[bool; 3]>()).prop_map(|(region, bounds, named)| {
        let bounded = bounds.into_iter().map(|us| Ring::Within(Duration::from_micros(us)));
        let named = [Ring::Neighbours, Ring::Continent, Ring::Any].into_iter().zip(named);
        let named = named.filter_map(|(ring, used)| used.then_some(ring));
        region.then_some(Ring::Region).into_iter().chain(bounded).chain(named).collect()
    });
    (rings, any::<bool>()).prop_map(|(rings, local_only)| Locality { rings, zone_first: false, local_only })
}

fn modes() -> impl Strategy<Value = (MtlsMode, LocalTransport)> {
    let mtls = select(vec![MtlsMode::Strict, MtlsMode::Permissive]);
    (mtls, select(vec![LocalTransport::Kernel, LocalTransport::Sidecar]))
}

fn policy() -> impl Strategy<Value = Policy> {
    let retries =
        (1..=10_u32, 0..=100_u32, any::<u32>()).prop_map(|(attempts, budget_percent, budget_floor)| {
            Retries { attempts, budget_percent, budget_floor }
        });
    let unique = |routes: &Vec<Route>| {
        let names: std::collections::BTreeSet<_> = routes.iter().map(|route| &route.name).collect();
        names.len() == routes.len()
    };
    let routes = collection::vec(route(), 0..4).prop_filter("routes have unique names", unique);
    let balancing = (any::<u32>(), balancing());
    let key = collection::vec(key_source(), 0..3);
    let lookaside = option::of("[a-z]{1,8}:[1-9][0-9]{1,3}");
    let sources = "[a-z]{1,5}/([a-z]{1,5}|[*])".prop_map(|text| RouteSource::new(&text).unwrap());
    let security = (option::of(authorization()), modes(), collection::vec(sources, 0..3));
    let rest = (option::of(health_check()), lookaside, option::of(traffic()), security);
    let restated = collection::btree_set(select(PolicyField::ALL.to_vec()), 0..4);
    let key = (key, option::of(name()), restated);
    (routes, locality(), balancing, timeouts(), (retries, option::of(limit()), key), rest).prop_map(
        |(
            routes,
            locality,
            (subset, balancing),
            timeouts,
            (retries, limit, (key, role, restated)),
            (health_check, lookaside, traffic, (authorization, (mtls, local_transport), accept_routes_from)),
        )| {
            Policy {
                routes,
                locality,
                balancing: Balancing { subset, ..balancing },
                timeouts,
                retries,
                limit,
                key,
                role,
                health_check,
                lookaside,
                traffic: traffic.map(Box::new),
                authorization: authorization.map(Box::new),
                mtls,
                local_transport,
                accept_routes_from,
                restated: Default::default(),
            }
            .restating(restated)
        },
    )
}

fn policy_defaults() -> impl Strategy<Value = (RecordKey, Record)> {
    let scope =
        option::of(name()).prop_map(|tenant| tenant.map_or(DefaultsScope::Mesh, DefaultsScope::Tenant));
    (scope, policy()).prop_filter_map("defaults have no shares", |(scope, policy)| {
        let defaults = PolicyDefaults::new(&policy).ok()?;
        Some((RecordKey::PolicyDefaults(scope), defaults.into()))
    })
}

fn authorization() -> impl Strategy<Value = Authorization> {
    let modes = select(vec![AuthorizationMode::Enforce, AuthorizationMode::Audit]);
    let callers = || {
        let caller = prop_oneof![Just("*".to_owned()), "[a-z]{1,5}/[a-z]{1,5}", "[a-z]{1,5}/[a-z]{0,5}[*]"];
        collection::vec(caller.prop_map(|text| CallerMatch::new(text).unwrap()), 0..3)
    };
    let path = (any::<bool>(), "(/[a-z]{1,4}){1,3}")
        .prop_map(|(exact, text)| if exact { PathMatch::Exact(text) } else { PathMatch::Prefix(text) });
    let rest = (collection::vec("[A-Z]{1,6}", 0..3), collection::vec(path, 0..3));
    let source = (any::<u32>(), 8..=32_u8).prop_map(|(bits, length)| {
        let network = bits & u32::MAX << (32 - length);
        AddressPrefix::new(IpAddr::V4(network.into()), length).unwrap()
    });
    let conditions = (collection::vec(source, 0..2), collection::vec(condition(), 0..3));
    let rule = (any::<bool>(), callers(), rest, conditions);
    let tokens = collection::btree_map("[a-z]{1,8}", texts(), 0..2).prop_map(|all| {
        all.into_iter().map(|(issuer, audiences)| AcceptedTokens { issuer, audiences }).collect()
    });
    (modes, collection::btree_map(name::<Label>(), rule, 0..4), callers(), tokens).prop_map(
        |(mode, rules, intermediaries, tokens)| {
            let rule = |(name, (denies, from, (methods, paths), (sources, when)))| AuthorizationRule {
                name,
                denies,
                from,
                methods,
                paths,
                sources,
                when,
            };
            Authorization { mode, rules: rules.into_iter().map(rule).collect(), intermediaries, tokens }
        },
    )
}

fn condition() -> impl Strategy<Value = Condition> {
    let subject = prop_oneof![
        texts().prop_map(ConditionSubject::Claim),
        "[a-z]{1,5}".prop_map(ConditionSubject::Header),
    ];
    (subject, any::<bool>(), texts()).prop_map(|(subject, excludes, values)| Condition {
        subject,
        excludes,
        values: values.into_iter().map(ValueMatch).collect(),
    })
}

/// One to three strings.
fn texts() -> impl Strategy<Value = Vec<String>> {
    collection::vec("[a-z]{1,5}[*]?", 1..4)
}

fn health_check() -> impl Strategy<Value = HealthCheck> {
    let probe = prop_oneof![
        Just(Probe::Tcp),
        ("/[a-z?=/]{0,10}", option::of(100..=599_u16))
            .prop_map(|(path, status)| Probe::Http { path, status }),
        "[a-zA-Z.]{0,10}".prop_map(|service| Probe::Grpc { service }),
    ];
    let counts = (1..=100_u32, 1..=100_u32, 1..=100_u32, 0..=50_u32);
    (probe, micros(100_000..3_600_000_000), counts).prop_map(|(probe, interval, counts)| {
        let (rise, fall, minimum_samples, jitter_percent) = counts;
        HealthCheck {
            probe,
            interval,
            jitter_percent,
            timeout: Duration::from_millis(70),
            rise,
            fall,
            minimum_samples,
        }
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    (any::<bool>(), any::<u64>(), 0..=1000_u32, ".{0,50}", any::<bool>()).prop_map(
        |(healthy, since_ms, confidence, cause, stale)| Verdict {
            healthy,
            since_ms,
            confidence,
            cause,
            stale,
        },
    )
}

fn balancing() -> impl Strategy<Value = Balancing> {
    let signals =
        vec![LoadSignal::Auto, LoadSignal::Requests, LoadSignal::Cpu, LoadSignal::Metric("jobs".into())];
    let policies = select(BalancingPolicy::ALL.to_vec());
    (policies, select(signals), 1..=8_u32, micros(1_000_000..60_000_000), any::<bool>()).prop_map(
        |(policy, signal, some, time, poll)| Balancing {
            policy,
            signal,
            score: Score {
                smoothing: some,
                half_life: time,
                gain: some,
                memory: time,
                poll,
                poll_after: poll.then_some(time),
                poll_ratio: some,
                reward: some,
                ..Score::default()
            },
            outliers: Outliers { consecutive: some, first: time, longest: time * 2, ..Outliers::default() },
            load_factor: 100 + some,
            ..Balancing::default()
        },
    )
}

fn shard_move() -> impl Strategy<Value = ShardMove> {
    (any::<u32>(), name(), name(), name(), 0..3).prop_map(|(shard, role, from, to, kind)| ShardMove {
        shard: ShardId(shard),
        role,
        from: (kind != 1).then_some(from),
        to: (kind != 2).then_some(to),
    })
}

fn regions() -> impl Strategy<Value = Regions> {
    let info = (".{0,8}", any::<bool>(), any::<u8>());
    let regions = collection::btree_map(name::<Region>(), info, 0..6);
    (regions, egress()).prop_map(|(drawn, mut egress)| {
        let names: Vec<Region> = drawn.keys().cloned().collect();
        let regions = drawn.into_iter().map(|(region, (continent, draining, which))| {
            let is_neighbour = |(i, other): &(usize, &Region)| which >> i & 1 == 1 && **other != region;
            let neighbours = names.iter().enumerate().filter(is_neighbour).map(|(_, other)| other.clone());
            let neighbours = neighbours.collect();
            (region, RegionInfo { continent, neighbours, draining })
        });
        // Prices must be for declared regions.
        if let [first, .., last] = &names[..] {
            egress.prices.insert((first.clone(), last.clone()), egress.price);
        }
        Regions { regions: regions.collect(), egress }
    })
}

fn egress() -> impl Strategy<Value = Egress> {
    let amount = || any::<u64>().prop_map(Dollars::of_picodollars);
    let per_ms = option::of((1..u64::MAX).prop_map(Dollars::of_picodollars));
    (amount(), per_ms, option::of(amount())).prop_map(|(price, per_ms, cap)| Egress {
        price,
        per_ms,
        cap,
        ..Egress::default()
    })
}

fn round_trips() -> impl Strategy<Value = RoundTrips> {
    let pair = (name::<Region>(), name::<Region>(), micros(0..10_000_000));
    collection::vec(pair, 0..6).prop_map(|pairs| {
        let mut round_trips = RoundTrips::default();
        for (a, b, rtt) in pairs.into_iter().filter(|(a, b, _)| a != b) {
            round_trips.set(a, b, rtt);
        }
        round_trips
    })
}

fn measured() -> impl Strategy<Value = MeasuredDistances> {
    let distance = (micros(1..10_000_000), any::<u64>())
        .prop_map(|(round_trip, measured_at_ms)| MeasuredDistance { round_trip, measured_at_ms });
    collection::btree_map(name(), distance, 0..6).prop_map(|to| MeasuredDistances { to })
}

fn hosts() -> impl Strategy<Value = Hosts> {
    let types = collection::btree_map(name::<HostType>(), 100..=10_000_u32, 1..6);
    let addresses = collection::btree_set(any::<u32>(), 0..6);
    (types, addresses).prop_map(|(speeds, addresses)| {
        let names: Vec<_> = speeds.keys().cloned().collect();
        let prefix = |(i, bits): (usize, u32)| {
            let prefix = AddressPrefix::new(std::net::Ipv4Addr::from_bits(bits).into(), 32).unwrap();
            (prefix, names[i % names.len()].clone())
        };
        Hosts::new(speeds, addresses.into_iter().enumerate().map(prefix).collect()).unwrap()
    })
}

fn workload() -> impl Strategy<Value = WorkloadEntry> {
    let path = || option::of("(/[a-z]{1,8}){1,4}");
    let selector = (any::<u32>(), option::of(any::<u32>()), path(), path(), option::of("[a-z]{1,8}"));
    let selector = selector.prop_map(|(uid, gid, executable, cgroup, network_namespace)| ProgramSelector {
        uid: Some(uid),
        gid,
        executable,
        cgroup,
        network_namespace,
    });
    (collection::vec(name(), 0..3), collection::vec(selector, 1..4))
        .prop_map(|(agents, programs)| WorkloadEntry { agents, programs })
}

fn role_binding() -> impl Strategy<Value = RoleBinding> {
    let subject = prop_oneof![
        any::<u32>().prop_map(Subject::Uid),
        "[a-z]{1,8}".prop_map(Subject::User),
        "[a-z]{1,8}".prop_map(Subject::Group),
        Just(Subject::Anonymous),
        "[a-z]{1,8}/\\*".prop_map(|text| Subject::parse(&text).unwrap()),
    ];
    (0..3, collection::vec(name(), 0..3), collection::vec(subject, 1..4)).prop_map(
        |(role, tenants, subjects)| match role {
            0 => RoleBinding {
                role: AccessRole::Operator,
                tenants,
                services: Vec::new(),
                subjects,
                workloads: Some(WorkloadBounds {
                    uids: vec![UidRange { first: 7, last: 9 }],
                    cgroups: vec!["/red.slice".into()],
                    agents: vec!["red-1".parse().unwrap()],
                }),
            },
            1 => RoleBinding {
                role: AccessRole::Admin,
                tenants: Vec::new(),
                services: Vec::new(),
                subjects,
                workloads: None,
            },
            _ => RoleBinding {
                role: AccessRole::Registrar,
                tenants: Vec::new(),
                services: vec![ServiceName::new("shop/cart").unwrap()],
                subjects,
                workloads: None,
            },
        },
    )
}

/// Any record, with one of its valid keys.
pub(super) fn entry() -> impl Strategy<Value = (RecordKey, Record)> {
    let endpoint = (service_name(), endpoint()).prop_map(|(name, endpoint)| {
        let key = RecordKey::Endpoint(name, endpoint.location.region.clone(), endpoint.instance.clone());
        (key, Record::Endpoint(endpoint))
    });
    let wish = (service_name(), shard_move())
        .prop_map(|(name, wish)| (RecordKey::Move(name, wish.shard), Record::Move(wish)));
    prop_oneof![
        (service_name(), service())
            .prop_map(|(name, service)| (RecordKey::Service(name), Record::Service(service))),
        endpoint,
        (service_name(), policy())
            .prop_map(|(name, policy)| (RecordKey::Policy(name), Record::Policy(policy))),
        wish,
        (service_name(), name(), name(), verdict()).prop_map(|(name, region, id, verdict)| (
            RecordKey::Health(name, region, id),
            Record::Verdict(verdict)
        )),
        regions().prop_map(|regions| (RecordKey::Regions, Record::Regions(regions))),
        round_trips().prop_map(|pairs| (RecordKey::RoundTrips, Record::RoundTrips(pairs))),
        (name(), measured()).prop_map(|(region, distances)| (
            RecordKey::MeasuredDistances(region),
            Record::MeasuredDistances(distances)
        )),
        hosts().prop_map(|hosts| (RecordKey::Hosts, Record::Hosts(hosts))),
        (service_name(), name(), region_table()).prop_map(|(name, region, table)| (
            RecordKey::RegionTable(name, region),
            Record::RegionTable(table)
        )),
        revocations().prop_map(|record| (RecordKey::Revocations, Record::Revocations(record))),
        federated_domains()
            .prop_map(|record| (RecordKey::FederatedDomains, Record::FederatedDomains(record))),
        token_issuers().prop_map(|record| (RecordKey::TokenIssuers, record.into())),
        trust_bundle().prop_map(|bundle| (RecordKey::TrustBundle, Record::TrustBundle(bundle))),
        (name(), name(), any::<u64>()).prop_map(|(region, agent, elected_at_ms)| (
            RecordKey::Checker(region),
            Record::ElectedChecker(ElectedChecker { agent, elected_at_ms })
        )),
        (name(), joined_agent())
            .prop_map(|(name, agent)| (RecordKey::JoinedAgent(name), Record::JoinedAgent(agent))),
        select(vec![DefaultAuthorization::Allow, DefaultAuthorization::Audit, DefaultAuthorization::Deny])
            .prop_map(|default| (RecordKey::DefaultAuthorization, Record::DefaultAuthorization(default))),
        (service_name(), authorization())
            .prop_map(|(name, rules)| (RecordKey::Authorization(name), Record::Authorization(rules))),
        (service_name(), workload())
            .prop_map(|(name, entry)| (RecordKey::Workload(name), Record::Workload(entry))),
        (name(), role_binding())
            .prop_map(|(name, binding)| (RecordKey::RoleBinding(name), Record::RoleBinding(binding))),
        policy_defaults(),
        gateway_entry(),
    ]
}
