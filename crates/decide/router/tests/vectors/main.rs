//! Compares routes, shards, rings and calls by key with `vectors/`; its README says how to change them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{sync::Arc, time::Duration};

use fairmesh_model::{
    Confirmation, Endpoint, Hosts, InstanceId, Label, Location, Region, RegionShares, RegionTable, Regions,
    Role, RoundTrips, ShardKey, Share, TableOrigin, TrafficShares, Verdict, Verdicts, Zone,
    arith::Generator,
    spec::{EndpointsSpec, HostsSpec, PolicySpec, ServiceSpec, ShardMapSpec, TopologySpec},
};
use fairmesh_router::{
    CompileInput, DirectResponse, EndpointStats, Outcome, PickParams, RequestView, ServiceTable, ShardTable,
    TableInput,
};
use serde_json::{Value, json};

mod health;
#[path = "../../../../../vectors/support.rs"]
mod support;

use support::{check, hex};

const CLIENT: u64 = 0x0123_4567_89ab_cdef;
/// A confirmation for tables; the age is 0 unless a fleet sets another.
const CONFIRMED: TableOrigin = TableOrigin::Planned(Confirmation { round: 1, at_ms: 0 });
const CLIENT_ID: &str = "host-1/web";
/// When tables are compiled, in nanoseconds.
const NOW: u64 = 1_000_000_000;

fn read<T: serde::de::DeserializeOwned>(document: &Value) -> T {
    serde_json::from_value(document.clone()).unwrap()
}

/// A planner's table for a caller's region and zone.
#[derive(Clone)]
struct Planned {
    regions: &'static [(&'static str, &'static str)],
    zones: &'static [(&'static str, &'static str)],
}

impl Planned {
    fn table(&self, zone: &str) -> RegionTable {
        let share = |share: &str| share.parse().unwrap();
        let to = self.regions.iter().map(|(region, part)| (Region::new(*region).unwrap(), share(part)));
        let shares = RegionShares { to: to.collect(), dropped: Share::NONE };
        let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
        let zones = self.zones.iter().map(|(zone, part)| (Zone::new(*zone).unwrap(), share(part)));
        let zones = [(Zone::new(zone).unwrap(), zones.collect())].into();
        RegionTable { shares, zones, origin: CONFIRMED }
    }

    fn write(&self) -> Value {
        let shares = |list: &[(&str, &str)]| -> Value {
            list.iter()
                .map(|(name, part)| ((*name).to_owned(), json!(part)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        json!({"to": shares(self.regions), "zones": shares(self.zones)})
    }
}

/// The fleet of a vector; parts that are `null` have their defaults.
#[derive(Clone)]
struct Fleet {
    kind: &'static str,
    policy: Value,
    endpoints: Value,
    topology: Value,
    hosts: Value,
    shard_map: Value,
    /// Seconds since a planner confirmed the table with the policy's shares; `None` for shares by hand.
    confirmed: Option<u64>,
    /// The caller's zone.
    zone: Option<&'static str>,
    /// A planner's division of calls among regions, and among zones for calls that stay.
    planned: Option<Planned>,
    /// Endpoints with their number of consecutive failed probes.
    failed_probes: &'static [(&'static str, u32)],
    /// Endpoints that this caller called last, and whether the calls succeeded.
    called: &'static [(&'static str, bool)],
    /// Whether the mesh has a trust domain.
    requires_mtls: bool,
}

impl Fleet {
    fn replicated(policy: Value, endpoints: Value) -> Self {
        let [topology, hosts, shard_map] = [Value::Null, Value::Null, Value::Null];
        Self {
            kind: "replicated",
            policy,
            endpoints,
            topology,
            hosts,
            shard_map,
            confirmed: None,
            zone: None,
            planned: None,
            failed_probes: &[],
            called: &[],
            requires_mtls: false,
        }
    }

    /// Unhealthy verdicts on endpoints with failed probes.
    fn verdicts(&self, endpoints: &[Endpoint]) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (instance, failures) in self.failed_probes {
            let endpoint = endpoints.iter().find(|one| one.instance.as_str() == *instance).unwrap();
            let confidence = Verdict::confidence_of(*failures);
            let cause = "status 503".to_owned();
            let verdict = Verdict { healthy: false, since_ms: 0, confidence, cause, stale: false };
            verdicts.put(endpoint.location.region.clone(), endpoint.instance.clone(), verdict);
        }
        verdicts
    }

    fn compile(&self) -> ServiceTable {
        let service = json!({"name": "shop/cart", "type": self.kind, "protocol": "http1"});
        let (name, service) = read::<ServiceSpec>(&service).validate().unwrap();
        let (_, policy) = read::<PolicySpec>(&self.policy).validate().unwrap();
        let (_, endpoints) = read::<EndpointsSpec>(&self.endpoints).validate().unwrap();
        let (regions, round_trips) = match &self.topology {
            Value::Null => (Regions::default(), RoundTrips::default()),
            topology => read::<TopologySpec>(topology).validate().unwrap(),
        };
        let hosts = match &self.hosts {
            Value::Null => Hosts::default(),
            hosts => read::<HostsSpec>(hosts).validate().unwrap(),
        };
        let shards = (!self.shard_map.is_null()).then(|| {
            let (_, map) = read::<ShardMapSpec>(&self.shard_map).validate().unwrap();
            Arc::new(ShardTable::compile(&map))
        });
        let zone = self.zone.map(|zone| Zone::new(zone).unwrap());
        let location = Location { zone, ..Location::in_region(Region::new("eu").unwrap()) };
        let tables = policy.traffic.iter().flat_map(|traffic| traffic.tables());
        let table = tables.filter(|(from, _)| **from == location.region).map(|(_, table)| table).next();
        let table = table.map(|table| match self.confirmed {
            None => table,
            Some(_) => RegionTable { origin: CONFIRMED, ..table },
        });
        let planned = self.planned.as_ref().map(|planned| planned.table(self.zone.unwrap()));
        let table = planned.or(table);
        let age = Duration::from_secs(self.confirmed.unwrap_or_default());
        let input = CompileInput {
            name: &name,
            service: &service,
            policy: &policy,
            endpoints: &endpoints,
            shards: shards.as_ref(),
            location: &location,
            regions: &regions,
            round_trips: &round_trips,
            table: table.as_ref().map(|table| TableInput { table, age }),
            hosts: &hosts,
            health: &self.verdicts(&endpoints),
            now: NOW,
            client_id: CLIENT_ID,
            client: CLIENT,
            requires_mtls: self.requires_mtls,
        };
        self.compile_after_calls(&input)
    }

    /// The table compiled after this caller's own calls.
    fn compile_after_calls(&self, input: &CompileInput<'_>) -> ServiceTable {
        let stats = Arc::<EndpointStats>::default();
        let before = ServiceTable::compile(input, &stats, None);
        if self.called.is_empty() {
            return before;
        }
        for (instance, succeeded) in self.called {
            let index = stats.index_of(&InstanceId::new(*instance).unwrap()).unwrap();
            stats.begin(index);
            stats.finish(index, if *succeeded { Outcome::Ok } else { Outcome::Failed }, NOW);
        }
        ServiceTable::compile(input, &stats, Some(&before))
    }

    fn write(&self) -> Value {
        let mut caller = json!({"region": "eu", "client": hex(CLIENT)});
        if let Some(zone) = self.zone {
            caller["zone"] = json!(zone);
        }
        if self.requires_mtls {
            caller["requiresMtls"] = json!(true);
        }
        json!({
            "caller": caller, "type": self.kind, "policy": self.policy,
            "endpoints": self.endpoints, "topology": self.topology, "hosts": self.hosts, "shardMap": self.shard_map,
        })
    }
}

/// The instance picked, or the name of the error.
fn picked(table: &ServiceTable, params: &PickParams<'_>, seed: u64) -> Value {
    match table.pick(params, 0, seed) {
        Ok(picked) => json!(table.target(picked.index).instance),
        Err(refused) => {
            let word = format!("{refused:?}");
            json!({"refused": word.split([' ', '{', '(']).next()})
        }
    }
}

fn endpoints(list: &[(&str, &str, &str, u32)]) -> Value {
    let endpoint = |&(instance, region, state, weight): &(&str, &str, &str, u32)| {
        json!({
            "instance": instance, "address": "10.0.0.1:80", "region": region, "state": state, "weight": weight,
        })
    };
    json!({"service": "shop/cart", "endpoints": list.iter().map(endpoint).collect::<Vec<_>>()})
}

fn topology() -> Value {
    json!({
        "regions": [
            {"name": "eu"}, {"name": "near"}, {"name": "us", "draining": true}, {"name": "asia"}, {"name": "moon"},
        ],
        "roundTrips": [
            {"between": ["eu", "near"], "rtt": "5ms"}, {"between": ["eu", "us"], "rtt": "36ms"},
            {"between": ["asia", "eu"], "rtt": "200ms"},
        ],
    })
}

/// The topology with continents and neighbours.
fn declared_topology() -> Value {
    let mut topology = topology();
    topology["regions"] = json!([
        {"name": "eu", "continent": "europe", "neighbours": ["asia"]}, {"name": "near", "continent": "europe"},
        {"name": "us", "draining": true}, {"name": "asia"}, {"name": "moon", "continent": "europe"},
    ]);
    topology
}

/// Host, path, method, the header `x-canary`, and whether it is a gRPC call.
const REQUESTS: [(&str, &str, &str, &str, bool); 29] = [
    ("", "/cart/items", "GET", "", false),
    ("", "/cart/items?x=/cart", "POST", "", false),
    ("", "/cart/items/", "GET", "", false),
    ("", "/cart", "GET", "", false),
    ("", "/cartel", "GET", "", false),
    ("API.example.org:8080", "/cart/a", "GET", "", false),
    ("internal", "/cart/a", "GET", "", false),
    ("a.b.INTERNAL", "/cart/a", "GET", "", false),
    ("xinternal", "/cart/a", "GET", "", false),
    ("", "/", "GET", "yes, please", false),
    ("", "/", "GET", "no", false),
    ("", "*", "OPTIONS", "", false),
    ("", "/shop.v1.Cart/Add", "POST", "", true),
    ("", "/shop.v1.Cart/Remove", "POST", "", true),
    ("", "/shop.v1.Cart/Add", "POST", "", false),
    ("", "/cart/x", "PUT", "", false),
    ("", "/users/al/orders", "GET", "", false),
    ("", "/users//orders", "GET", "", false),
    ("", "/users/al/orders/", "GET", "", false),
    ("", "/users/12", "GET", "", false),
    ("", "/users/12/orders/x?page+no=1", "GET", "", false),
    ("", "/users/x12", "GET", "", false),
    ("", "/list?page+no=1%20of+2", "GET", "", false),
    ("", "/list?page%20no=1+of+2&page+no=3", "GET", "", false),
    ("", "/list?page+no=1+of+2&raw", "GET", "", false),
    ("", "/list?page+no=3&page+no=1+of+2", "GET", "", false),
    ("", "/me", "GET", "", false),
    ("", "/mine", "GET", "", false),
    ("", "/me", "GET", "no", false),
];

#[test]
fn routes() {
    let policy = json!({"service": "shop/cart", "routes": [
        {"name": "exact", "match": {"path": {"exact": "/cart/items"}}},
        {"name": "host", "match": {"hosts": ["api.example.org", "*.internal"], "path": {"prefix": "/cart"}}},
        {"name": "canary", "match": {"headers": [{"name": "X-Canary", "prefix": "yes"}]},
            "split": [{"service": "shop/cart", "weight": 90}, {"service": "shop/cart-next", "weight": 10}]},
        {"name": "grpc", "match": {"grpc": {"service": "shop.v1.Cart", "method": "Add"}}},
        {"name": "grpc-any", "match": {"grpc": {"service": "shop.v1.Cart"}}},
        {"name": "write", "match": {"methods": ["POST", "PUT"], "path": {"prefix": "/cart"}},
            "split": [{"service": "shop/off", "weight": 0}, {"service": "shop/writer", "weight": 3}]},
        {"name": "cart", "match": {"path": {"prefix": "/cart/"}}},
        {"name": "orders", "match": {"path": {"template": "/users/{id}/orders"}}},
        {"name": "numbered", "match": {"path": {"regex": "/users/[0-9]+(/.*)?"}}},
        {"name": "paged", "match": {"query": [
            {"name": "page no", "exact": "1 of 2"}, {"name": "raw", "present": false}]}},
        {"name": "batch", "match": {"clients": ["batch-*", "web"], "path": {"prefix": "/mine"}}},
        {"name": "ours", "match": {"clients": ["*/web"], "path": {"prefix": "/mine"}}},
        {"name": "anonymous", "match": {
            "path": {"prefix": "/me"}, "headers": [{"name": "x-canary", "present": false}]}},
    ]});
    let fleet = Fleet::replicated(policy.clone(), endpoints(&[]));
    let table = fleet.compile();
    let cases = REQUESTS.into_iter().map(|(host, path, method, canary, grpc)| {
        let headers: Vec<(String, String)> = match canary {
            "" => Vec::new(),
            value => vec![("x-canary".into(), value.into())],
        };
        let request = RequestView { host, path, method, headers: &headers, grpc };
        let targets: Vec<_> = (0..8).map(|seed| json!(table.route(&request, seed).target)).collect();
        json!({
            "host": host, "path": path, "method": method, "headers": headers, "grpc": grpc,
            "route": table.route(&request, 0).route, "target_by_seed_0_to_7": targets,
        })
    });
    check(
        "routes.json",
        &[("client", vec![json!(CLIENT_ID)]), ("policy", vec![policy]), ("requests", cases.collect())],
    );
}

#[test]
fn splits() {
    let policy = json!({"service": "shop/cart", "routes": [
        {"name": "canary", "match": {"path": {"prefix": "/"}},
            "split": [{"service": "shop/cart", "weight": 60}, {"service": "shop/cart-next", "weight": 40}],
            "splitKey": [{"header": "x-user"}, {"cookie": "sid"}, {"query": "user"}]},
    ]});
    let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
    let user = |name: &str| vec![("x-user".to_owned(), name.to_owned())];
    let cookie = vec![("cookie".to_owned(), "a=b; sid=ada".to_owned())];
    let both = [user("ben"), cookie.clone()].concat();
    let mut requests: Vec<_> = (0..8).map(|n| ("/", user(&n.to_string()))).collect();
    requests.extend([("/", cookie), ("/", both), ("/?user=7", Vec::new()), ("/", Vec::new())]);
    let cases = requests.into_iter().map(|(path, headers)| {
        let request = RequestView { host: "cart.shop", path, method: "GET", headers: &headers, grpc: false };
        let targets: Vec<_> = (0..16).map(|seed| json!(table.route(&request, seed).target)).collect();
        let has_key = !headers.is_empty() || path != "/";
        assert!(!has_key || targets.iter().all(|target| *target == targets[0]), "{path} {headers:?}");
        json!({"path": path, "headers": headers, "target_by_seed_0_to_15": targets})
    });
    check("splits.json", &[("policy", vec![policy]), ("requests", cases.collect())]);
}

#[test]
fn tenants() {
    let sources: [&[&str]; 4] = [&[], &["red/api"], &["red/*"], &["green/*", "red/web"]];
    let cases = sources.into_iter().flat_map(|sources| {
        let policy = json!({"service": "shop/cart", "acceptRoutesFrom": sources});
        let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
        ["shop/web", "red/api", "red/web", "green/x", "blue/x"].map(|from| {
            let accepted = table.accept_routes_from(&from.parse().unwrap()).is_ok();
            json!({"from": from, "policy": policy, "accepted": accepted})
        })
    });
    check("tenants.json", &[("cases", cases.collect())]);
}

#[test]
fn actions() {
    let policy = json!({"service": "shop/cart", "key": {"cookie": "sid"}, "routes": [
        {"name": "moved", "match": {"path": {"prefix": "/old"}},
            "redirect": {"path": {"prefix": "/new"}, "status": 308}},
        {"name": "secure", "match": {"path": {"exact": "/login"}}, "redirect": {"scheme": "https", "port": 8443}},
        {"name": "elsewhere", "match": {"path": {"exact": "/docs"}},
            "redirect": {"host": "docs.example.org", "path": {"full": "/"}}},
        {"name": "v1", "match": {"path": {"prefix": "/v1"}},
            "rewrite": {"host": "cart.internal", "path": {"prefix": "/"}}},
        {"name": "faulty", "match": {"path": {"prefix": "/faulty"}},
            "fault": {"abort": {"share": "25%", "status": 503}, "delay": {"share": "25%", "time": "20ms"}},
            "mirror": {"service": "shop/shadow", "share": "25%"}},
    ]});
    let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
    let requests = [
        "/old",
        "/old/",
        "/old/a/b?c=/old",
        "/old//evil.example",
        "/login?next=/",
        "/docs?q=1",
        "/v1",
        "/v1/items?x",
        "/v1//a",
        "/faulty",
    ];
    let cases = requests.into_iter().map(|path| {
        let request = RequestView { host: "cart.shop:8080", path, method: "GET", headers: &(), grpc: false };
        let routed = table.route(&request, 0);
        let actions = routed.actions.unwrap();
        let responses = (0..16).map(|seed| actions.direct_response(&request, seed));
        let responses = responses.map(|response| match response {
            Some(DirectResponse::Redirect { status, location }) => json!([status, location]),
            Some(DirectResponse::Abort { status }) => json!(status),
            None => Value::Null,
        });
        let responses = responses.collect::<Vec<_>>();
        let delays: Vec<_> =
            (0..16).map(|seed| actions.delay(seed).map(|time| time.as_millis() as u64)).collect();
        let mirrors: Vec<_> = (0..16).map(|seed| actions.mirror(seed).map(ToString::to_string)).collect();
        json!({
            "path": path, "route": routed.route, "sent_path": actions.path(path), "sent_host": actions.host(),
            "instead_by_seed_0_to_15": responses, "delay_ms_by_seed_0_to_15": delays,
            "mirror_by_seed_0_to_15": mirrors,
        })
    });
    check("actions.json", &[("policy", vec![policy]), ("requests", cases.collect())]);
}

#[test]
fn shards() {
    let mut random = Generator::new(5);
    let mut wide: Vec<u128> = (0..40).map(|i| u128::from(random.next()) << (i * 3 % 65)).collect();
    wide.extend([0, 1 << 64, (1 << 64) + 1, (1 << 64) + 2]);
    wide.sort_unstable();
    wide.dedup();
    let maps = [(vec![0, 100, 200, 300, 400, 500], Some(900)), (wide, None)];
    let cases = maps.into_iter().map(|(starts, end): (Vec<u128>, Option<u128>)| {
        let shards: Vec<_> =
            starts.iter().zip(0..).map(|(start, id)| json!({"id": id, "start": start.to_string()})).collect();
        let end = end.map_or("max".to_owned(), |end| end.to_string());
        let map = json!({"service": "shop/cart", "interval": {"start": 0, "end": end}, "shards": shards});
        let compiled = ShardTable::compile(&read::<ShardMapSpec>(&map).validate().unwrap().1);
        let around = starts.iter().flat_map(|&start| [start.saturating_sub(1), start, start + 1]);
        let look_ups = around.chain([618, 899, 900, u128::MAX]).map(|key| {
            let shard = compiled.locate(ShardKey(key)).map(|located| located.shard.0);
            json!([key.to_string(), shard])
        });
        json!({"map": map, "key_and_shard": look_ups.collect::<Vec<_>>()})
    });
    check("shards.json", &[("maps", cases.collect())]);
}

fn policy(locality: Value, subset: u32) -> Value {
    json!({"service": "shop/cart", "locality": locality, "balancing": {"subset": subset}})
}

/// Each endpoint by instance, with the ring of its region.
fn distances(table: &ServiceTable) -> Vec<Value> {
    let distance = |c: fairmesh_router::Candidate<'_>| {
        json!({
            "instance": c.target.instance, "ring": c.distance.ring, "draining": c.distance.draining,
            "in_subset": c.in_subset,
        })
    };
    let mut distances: Vec<_> = table.candidates().map(distance).collect();
    distances.sort_by_key(|endpoint| endpoint["instance"].to_string());
    distances
}

#[test]
fn rings() {
    let everywhere = [
        ("a", "eu", "serving", 1000),
        ("b", "eu", "draining", 1000),
        ("c", "near", "serving", 2000),
        ("d", "us", "serving", 1000),
        ("e", "asia", "serving", 1000),
        ("f", "moon", "serving", 500),
        ("g", "eu", "starting", 1000),
        ("h", "asia", "lost", 1000),
        ("i", "near", "serving", 1000),
    ];
    let default = policy(json!({}), 20);
    let without = |regions: &[&str]| -> Vec<_> {
        everywhere.into_iter().filter(|endpoint| !regions.contains(&endpoint.1)).collect()
    };
    let unwell: Vec<_> = everywhere.into_iter().filter(|endpoint| endpoint.2 != "serving").collect();
    let cases = [
        (everywhere.to_vec(), default.clone()),
        (everywhere.to_vec(), policy(json!({"rings": ["1ms", "any"]}), 20)),
        (everywhere.to_vec(), policy(json!({"localOnly": true}), 20)),
        (everywhere.to_vec(), policy(json!({}), 2)),
        (without(&["eu", "near"]), default.clone()),
        (without(&["eu", "near", "asia", "moon"]), default.clone()),
        (without(&["eu", "near", "asia"]), policy(json!({"rings": ["35ms"]}), 20)),
        (without(&["eu"]), policy(json!({"localOnly": true}), 20)),
        (unwell, default.clone()),
        (Vec::new(), default.clone()),
    ];
    let fast = json!({
        "types": [{"name": "fast", "speed": 2500}], "prefixes": [{"prefix": "10.0.0.0/8", "hostType": "fast"}],
    });
    let named = [
        (everywhere.to_vec(), policy(json!({"rings": ["region", "neighbours", "continent", "any"]}), 20)),
        (everywhere.to_vec(), policy(json!({"rings": ["region", "10ms", "continent", "250ms"]}), 20)),
        (without(&["eu"]), policy(json!({"rings": ["region", "continent"]}), 20)),
    ];
    let cases = cases.into_iter().map(|(list, policy)| (list, policy, topology(), Value::Null));
    let cases = cases.chain([(everywhere.to_vec(), default, topology(), fast)]);
    let cases = cases.chain(named.map(|(list, policy)| (list, policy, declared_topology(), Value::Null)));
    let cases = cases.map(|(list, policy, topology, hosts)| {
        let fleet = Fleet { topology, hosts, ..Fleet::replicated(policy, endpoints(&list)) };
        let table = fleet.compile();
        let picks: Vec<_> = (0..8).map(|seed| picked(&table, &PickParams::default(), seed)).collect();
        json!({"fleet": fleet.write(), "endpoints": distances(&table), "picked_by_seed_0_to_7": picks})
    });
    check("rings.json", &[("cases", cases.collect())]);
}

#[test]
fn plaintext() {
    let one = |instance: &str, region: &str, mtls: bool| json!({"instance": instance, "address": "10.0.0.1:80", "region": region, "mtls": mtls});
    let list = |endpoints: &[Value]| json!({"service": "shop/cart", "endpoints": endpoints});
    let mixed =
        list(&[one("a", "eu", false), one("b", "eu", true), one("c", "near", true), one("d", "eu", false)]);
    let far = list(&[one("a", "eu", false), one("b", "near", true)]);
    let none = list(&[one("a", "eu", false), one("b", "near", false)]);
    let policy = |mtls: &str| json!({"service": "shop/cart", "mtls": mtls});
    let mut cases = Vec::new();
    for kind in ["replicated", "consistent-hash"] {
        for (requires_mtls, mtls) in [(false, "strict"), (true, "permissive"), (true, "strict")] {
            for endpoints in [&mixed, &far, &none] {
                let fleet = Fleet::replicated(policy(mtls), endpoints.clone());
                let fleet = Fleet { kind, topology: topology(), requires_mtls, ..fleet };
                let table = fleet.compile();
                let picked = |seed: u64| {
                    let key = Some(ShardKey(seed.into()));
                    picked(&table, &PickParams { key, ..PickParams::default() }, seed)
                };
                let picks: Vec<_> = (0..8).map(picked).collect();
                cases.push(json!({"fleet": fleet.write(), "picked_by_seed_and_key_0_to_7": picks}));
            }
        }
    }
    check("plaintext.json", &[("cases", cases)]);
}

fn replica(instance: &str, role: &str, state: &str) -> Value {
    json!({"instance": instance, "region": "eu", "role": role, "state": state})
}

#[test]
fn calls_by_key() {
    let list: Vec<_> = [
        ("a", "eu"),
        ("b", "eu"),
        ("c", "near"),
        ("d", "us"),
        ("e", "asia"),
        ("f", "eu"),
        ("g", "eu"),
        ("h", "eu"),
    ]
    .into_iter()
    .zip([1000, 2000, 1000, 500, 1000, 1000, 3000, 1000])
    .map(|((instance, region), weight)| (instance, region, "serving", weight))
    .collect();
    let map = json!({"service": "shop/cart", "version": 3, "interval": {"start": 0, "end": 900}, "shards": [
        {"id": 4, "start": 0, "replicas": [replica("d", "primary", "serving"), replica("e", "secondary", "serving")]},
        {"id": 5, "start": 500, "replicas": [
            replica("a", "primary", "stopping"), replica("b", "primary", "starting"),
            replica("c", "secondary", "serving"), replica("f", "secondary", "serving"),
            replica("g", "secondary", "serving"), replica("a", "secondary", "serving"),
            replica("h", "secondary", "serving"), replica("b", "secondary", "serving")]},
    ]});
    let policy = json!({"service": "shop/cart"});
    let replicated = Fleet::replicated(policy, endpoints(&list));
    let sharded = Fleet { kind: "sharded", topology: topology(), shard_map: map, ..replicated };
    let hashed = Fleet { kind: "consistent-hash", shard_map: Value::Null, ..sharded.clone() };
    let of_role = json!({"service": "shop/cart", "role": "primary"});
    let by_policy = Fleet { policy: of_role, ..sharded.clone() };
    let calls = |fleet: &Fleet, keys: &[Option<u128>], roles: &[Option<&str>]| {
        let table = fleet.compile();
        let case = |(key, role): (Option<u128>, Option<&str>)| {
            let role = role.map(|role| Role::new(role).unwrap());
            let params = PickParams { key: key.map(ShardKey), role: role.as_ref(), ..PickParams::default() };
            let picks: Vec<_> = (0..8).map(|seed| picked(&table, &params, seed)).collect();
            json!({"key": key.map(|key| key.to_string()), "role": role, "picked_by_seed_0_to_7": picks})
        };
        let calls_by_role = keys.iter().flat_map(|&key| roles.iter().map(move |&role| (key, role)));
        json!({"fleet": fleet.write(), "calls": calls_by_role.map(case).collect::<Vec<_>>()})
    };
    let roles = [None, Some("primary"), Some("secondary"), Some("unheard")];
    let keys: Vec<_> = (0..30).map(|key| Some(key * 1_000_003)).chain([None, Some(u128::MAX)]).collect();
    let cases = vec![
        calls(&sharded, &[Some(618), Some(3), Some(900), None], &roles),
        calls(&hashed, &keys, &[None]),
        calls(&by_policy, &[Some(618), Some(3)], &roles),
    ];
    check("keys.json", &[("cases", cases)]);
}

/// Shares of callers in `eu`; all calls of class `bulk` go to `asia`.
fn traffic() -> Value {
    json!({"service": "shop/cart", "traffic": {"shares": [
        {"from": "eu", "to": {"eu": "50%", "near": "20%", "us": "15%", "asia": "5%"}, "dropped": "10%"},
        {"from": "eu", "class": "bulk", "to": {"asia": "100%"}},
        {"from": "us", "to": {"us": "100%"}},
    ]}})
}

/// Fleets whose calls are divided by a table, with the calls' keys.
fn divided_fleets() -> [(Fleet, &'static [Option<u128>]); 14] {
    let list = [
        ("a", "eu", "serving", 1000),
        ("b", "eu", "serving", 3000),
        ("c", "near", "serving", 1000),
        ("d", "us", "serving", 1000),
        ("e", "asia", "serving", 1000),
    ];
    let without = |instance: &str| -> Vec<_> {
        list.into_iter()
            .map(|one| if one.0 == instance { (one.0, one.1, "draining", one.3) } else { one })
            .collect()
    };
    let mut undrained = topology();
    undrained["regions"][2] = json!({"name": "us"});
    let divided = Fleet { topology: undrained.clone(), ..Fleet::replicated(traffic(), endpoints(&list)) };
    let keyed = |kind, shard_map| Fleet { kind, shard_map, ..divided.clone() };
    let mut local = traffic();
    local["locality"] = json!({"localOnly": true});
    let mut near = traffic();
    near["locality"] = json!({"rings": ["35ms"]});
    let none: &'static [Option<u128>] = &[None];
    [
        (divided.clone(), none),
        // `us` drains.
        (Fleet { topology: topology(), ..divided.clone() }, none),
        // No endpoint serves in `near`, so rings decide the calls drawn there.
        (Fleet { endpoints: endpoints(&without("c")), ..divided.clone() }, none),
        (Fleet { policy: local, ..divided.clone() }, none),
        (Fleet { policy: near, ..divided.clone() }, none),
        (Fleet { confirmed: Some(59), ..divided.clone() }, none),
        (Fleet { confirmed: Some(60), ..divided.clone() }, none),
        (Fleet { confirmed: Some(900), ..divided.clone() }, none),
        (
            keyed("consistent-hash", Value::Null),
            &[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), None],
        ),
        (keyed("sharded", map_of_regions()), &[Some(3), Some(618), Some(900), None]),
        // No endpoint serves in `near`, and the table is a planner's: its calls are spread over the other regions by
        // power.
        (Fleet { confirmed: Some(0), endpoints: endpoints(&without("c")), ..divided.clone() }, none),
        (
            Fleet {
                confirmed: Some(0),
                endpoints: endpoints(&without("c")),
                ..keyed("consistent-hash", Value::Null)
            },
            &[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)],
        ),
        (by_zone("eu-a", &undrained), none),
        // No endpoint serves in the drawn zone, so any zone of the region may.
        (by_zone("eu-c", &undrained), none),
    ]
}

/// A shard map whose shards have copies in two regions each.
fn map_of_regions() -> Value {
    let replica = |instance: &str, region: &str| json!({"instance": instance, "region": region, "role": "primary", "state": "serving"});
    json!({"service": "shop/cart", "version": 3, "interval": {"start": 0, "end": 900}, "shards": [
        {"id": 4, "start": 0, "replicas": [replica("a", "eu"), replica("d", "us")]},
        {"id": 5, "start": 500, "replicas": [replica("d", "us"), replica("e", "asia")]},
    ]})
}

/// Three zones in `eu`, of which the last drains, and one more region; a planner divides the calls of a zone.
fn by_zone(zone: &'static str, topology: &Value) -> Fleet {
    let policy = json!({"service": "shop/cart", "traffic": {"planner": "rings"}, "locality": {"rings": ["zone", "any"]}});
    let list = [
        ("a", "eu", "serving", 1000),
        ("b", "eu", "serving", 3000),
        ("c", "eu", "draining", 1000),
        ("d", "us", "serving", 1000),
    ];
    let mut endpoints = endpoints(&list);
    for (endpoint, zone) in
        endpoints["endpoints"].as_array_mut().unwrap().iter_mut().zip(["eu-a", "eu-b", "eu-c", "us-a"])
    {
        endpoint["zone"] = json!(zone);
    }
    let planned = match zone {
        "eu-a" => {
            Planned { regions: &[("eu", "80%"), ("us", "20%")], zones: &[("eu-a", "40%"), ("eu-b", "60%")] }
        }
        _ => Planned { regions: &[("eu", "100%")], zones: &[("eu-c", "100%")] },
    };
    Fleet {
        topology: topology.clone(),
        zone: Some(zone),
        planned: Some(planned),
        ..Fleet::replicated(policy, endpoints)
    }
}

#[test]
fn region_tables() {
    let bulk = Label::new("bulk").unwrap();
    let cases = divided_fleets().map(|(fleet, keys)| {
        let table = fleet.compile();
        let calls = keys.iter().flat_map(|key| [None, Some(&bulk)].map(|class| (*key, class)));
        let calls = calls.map(|(key, class)| {
            let pick = |seed| {
                let key = key.map(ShardKey);
                let params = PickParams { key, class, call_seed: seed, ..PickParams::default() };
                picked(&table, &params, seed)
            };
            let picks: Vec<_> = (0..64).map(pick).collect();
            json!({"key": key.map(|key| key.to_string()), "class": class, "picked_by_seed_0_to_63": picks})
        });
        let mut written = fleet.write();
        written["confirmedSecondsAgo"] = json!(fleet.confirmed);
        if let Some(planned) = &fleet.planned {
            written["planned"] = planned.write();
        }
        json!({"fleet": written, "calls": calls.collect::<Vec<_>>()})
    });
    check("tables.json", &[("cases", cases.into_iter().collect())]);
}
