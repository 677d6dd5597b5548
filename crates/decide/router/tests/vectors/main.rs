//! Compares routes, shards, rings and calls by key with `vectors/`. The README there describes how to change the
//! vectors.

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
mod keys;
mod policy_defaults;
mod region_tables;
mod routing;
#[path = "../../../../../vectors/support.rs"]
mod support;

use support::{check, hex};

const CLIENT: u64 = 0x0123_4567_89ab_cdef;
/// A confirmation for tables. Their age is 0 unless a fleet sets another.
const CONFIRMED: TableOrigin = TableOrigin::Planned(Confirmation { round: 1, at_ms: 0 });
const CLIENT_ID: &str = "host-1/web";
/// Time at which tables are compiled, in nanoseconds.
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
        RegionTable { zones, ..RegionTable::new(shares, CONFIRMED) }
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

/// The fleet of a vector. Parts that are `null` have default values.
#[derive(Clone)]
struct Fleet {
    kind: &'static str,
    policy: Value,
    endpoints: Value,
    topology: Value,
    hosts: Value,
    shard_map: Value,
    /// Seconds since a planner confirmed the table with the policy's shares; `None` for a table written by hand.
    confirmed: Option<u64>,
    /// The caller's zone.
    zone: Option<&'static str>,
    /// A planner's division of calls among regions, and among zones for calls that stay.
    planned: Option<Planned>,
    /// Endpoints with their number of consecutive failed probes.
    failed_probes: &'static [(&'static str, u32)],
    /// Endpoints that this caller has called most recently, and whether the calls succeeded.
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

    /// Verdicts that endpoints with failed probes are unhealthy.
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
            authorizes_callers: false,
        };
        self.compile_after_calls(&input)
    }

    /// Compiles the table after this caller's own calls.
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

/// Returns the picked instance, or the name of the error.
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

/// Returns a topology with continents and neighbours.
fn declared_topology() -> Value {
    let mut topology = topology();
    topology["regions"] = json!([
        {"name": "eu", "continent": "europe", "neighbours": ["asia"]}, {"name": "near", "continent": "europe"},
        {"name": "us", "draining": true}, {"name": "asia"}, {"name": "moon", "continent": "europe"},
    ]);
    topology
}

fn policy(locality: Value, subset: u32) -> Value {
    json!({"service": "shop/cart", "locality": locality, "balancing": {"subset": subset}})
}

/// Returns each endpoint by instance, with the ring of its region.
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
fn locality_rings_match_vectors() {
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
fn plaintext_decisions_match_vectors() {
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
