use std::{mem::size_of_val, slice, sync::Arc};

use fairmesh_model::{
    Hosts, Location, Region, Regions, RoundTrips, Verdicts,
    spec::{PolicySpec, ServiceSpec},
};
use fairmesh_router::{CompileInput, EndpointStats, RouteNumbers, ServiceTable};
use serde_json::{Value, json};

use crate::{
    decider::{Decider, vectors},
    pick::{POLICY_BYTES, ROUTES_AT},
};

pub(crate) const REQUEST_BYTES: usize = 2048;
/// Size of `struct route_output` of `bpf/vectors/vectors.h`, in bytes.
pub(crate) const OUTPUT_BYTES: usize = 64;
/// The service of the policies. It is the program's first backend.
const SERVICE: &str = "shop/cart";
/// `ROUTE_LEFT` and `NOT_PLAIN` of `bpf/lib/shared.h`.
const ROUTE_LEFT: u32 = 12;
const NOT_PLAIN: u32 = 5;

/// A policy, with the routes that the program receives.
struct Routes {
    table: ServiceTable,
}

/// Decisions by seed: the chosen service, or the counter for which the program leaves the request to the
/// proxy.
type Decisions = Vec<Result<String, u32>>;

impl Routes {
    fn new(policy: &Value, client: &str) -> Self {
        let (_, policy) = serde_json::from_value::<PolicySpec>(policy.clone()).unwrap().validate().unwrap();
        let service = json!({"name": SERVICE, "type": "replicated", "protocol": "http1"});
        let (name, service) = serde_json::from_value::<ServiceSpec>(service).unwrap().validate().unwrap();
        let input = CompileInput {
            name: &name,
            service: &service,
            policy: &policy,
            endpoints: &[],
            shards: None,
            location: &Location::in_region(Region::new("eu").unwrap()),
            regions: &Regions::default(),
            round_trips: &RoundTrips::default(),
            table: None,
            hosts: &Hosts::default(),
            health: &Verdicts::default(),
            now: 0,
            client_id: client,
            client: 1,
            requires_mtls: false,
            authorizes_callers: false,
        };
        Self { table: ServiceTable::compile(&input, &Arc::new(EndpointStats::default()), None) }
    }

    /// The program's decisions for a request. An empty host stands for the service's own host.
    fn decide(&self, decider: &mut Decider, [method, path, host]: [&str; 3], headers: &str) -> Decisions {
        let host = if host.is_empty() { "cart.shop" } else { host };
        let numbers = self.table.route_numbers(host);
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        let mut input = policy(&numbers);
        input.extend((request.len() as u64).to_ne_bytes());
        input.extend(request.as_bytes());
        input.resize(POLICY_BYTES + 8 + REQUEST_BYTES, 0);
        let output = decider.decide("route", &[input], OUTPUT_BYTES).remove(0);
        let words: Vec<_> =
            output.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        let services = |position: u32| match position {
            0 => SERVICE.to_owned(),
            arm => numbers.arms[arm as usize - 1].backend.service.to_string(),
        };
        let decided = words[..8].iter().zip(&words[8..]);
        decided.map(|(why, at)| if *why == 0 { Ok(services(*at)) } else { Err(*why) }).collect()
    }
}

/// Encodes `struct policy`. Backends of splits are published at their positions plus 1.
fn policy(numbers: &RouteNumbers) -> Vec<u8> {
    let mut bytes = vec![0; ROUTES_AT];
    bytes.extend((numbers.steps.len() as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    for (at, arm) in (1_u64..).zip(&numbers.arms) {
        bytes.extend([arm.cumulative_weight, 1, at].map(u64::to_ne_bytes).concat());
    }
    bytes.resize(ROUTES_AT + 8 + 8 * 24, 0);
    // SAFETY: steps consist of integers without padding.
    bytes.extend(unsafe {
        slice::from_raw_parts(numbers.steps.as_ptr().cast::<u8>(), size_of_val(&numbers.steps[..]))
    });
    bytes.resize(POLICY_BYTES, 0);
    bytes
}

#[test]
fn routing_in_c_matches_vectors() {
    Decider::native().into_iter().for_each(compare);
}

#[test]
fn routing_in_kernel_matches_vectors() {
    Decider::in_kernel().into_iter().for_each(compare);
}

fn compare(mut decider: Decider) {
    let all = vectors("routes.json");
    let routes = Routes::new(&all["policy"][0], all["client"][0].as_str().unwrap());
    let (mut decided, mut left) = (0, 0);
    for case in all["requests"].as_array().unwrap() {
        let text = |field: &str| case[field].as_str().unwrap();
        let headers = case["headers"].as_array().unwrap().iter();
        let headers: String = headers
            .map(|header| format!("{}: {}\r\n", header[0].as_str().unwrap(), header[1].as_str().unwrap()))
            .collect();
        let is_grpc = case["grpc"] == json!(true);
        let headers = if is_grpc { format!("{headers}content-type: application/grpc\r\n") } else { headers };
        let decisions = routes.decide(&mut decider, [text("method"), text("path"), text("host")], &headers);
        for (decision, expected) in
            decisions.into_iter().zip(case["target_by_seed_0_to_7"].as_array().unwrap())
        {
            match decision {
                Ok(service) => {
                    assert_eq!(service, expected.as_str().unwrap(), "{case}");
                    assert!(!is_grpc, "{case}");
                    decided += 1;
                }
                Err(why) => {
                    assert!([ROUTE_LEFT, NOT_PLAIN].contains(&why), "{why}: {case}");
                    left += 1;
                }
            }
        }
    }
    // One route is a regular expression, so every request that reaches that route is left to the proxy.
    assert!(decided > 60 && left > 0, "{decided} are decided, {left} are left to the proxy");
}

#[test]
fn kernel_leaves_requests_that_may_match_unsupported_routes_to_proxy() {
    let Some(mut decider) = Decider::native() else { return };
    let policy = json!({"service": SERVICE, "routes": [
        {"name": "pattern", "match": {"path": {"regex": "/x[0-9]+"}, "headers": [{"name": "x-one", "exact": "1"}]}},
        {"name": "slow", "match": {"path": {"prefix": "/slow"}}, "timeout": "2s"},
        {"name": "moved", "match": {"path": {"exact": "/old"}}, "redirect": {"path": {"full": "/new"}}},
        {"name": "written", "match": {"methods": ["PUT", "CONNECT"], "path": {"prefix": "/files"}},
            "split": [{"service": "shop/writer", "weight": 1}]},
        {"name": "connects", "match": {"methods": ["CONNECT"]}, "redirect": {"path": {"full": "/no"}}},
        {"name": "elsewhere", "match": {"hosts": ["other.shop"]}, "redirect": {"path": {"full": "/no"}}},
        {"name": "queried", "match": {"query": [{"name": "q", "present": true}]}, "redirect": {"path": {"full": "/no"}}},
        {"name": "called", "match": {"grpc": {"service": "a.B"}}, "redirect": {"path": {"full": "/no"}}},
        {"name": "user", "match": {"path": {"template": "/users/{id}"}}, "redirect": {"path": {"full": "/no"}}},
        {"name": "tail", "match": {"headers": [{"name": "x-two", "present": false}]},
            "split": [{"service": "shop/two", "weight": 3}]},
    ]});
    let routes = Routes::new(&policy, "any");
    let mut decide =
        |method, path, headers: &str| routes.decide(&mut decider, [method, path, ""], headers)[0].clone();
    let two = Ok("shop/two".to_owned());
    let left = Err(ROUTE_LEFT);
    assert_eq!(decide("GET", "/x1", ""), two, "its other condition fails");
    assert_eq!(decide("GET", "/x1", "X-One: 1\r\n"), left);
    assert_eq!(decide("GET", "/x1", "x-one: 1 \r\n"), left, "the value has to be trimmed");
    assert_eq!(decide("GET", "/x1", "x-one: 2\r\nx-one: 1\r\n"), two, "the first value counts");
    assert_eq!(decide("GET", "/slow/1", ""), left);
    assert_eq!(decide("GET", "/slower", ""), two);
    assert_eq!(decide("GET", "/old?new", ""), left);
    assert_eq!(decide("PUT", "/files/a?b", ""), Ok("shop/writer".to_owned()));
    assert_eq!(decide("POST", "/files", ""), two);
    assert_eq!((decide("GET", "/a?q", ""), decide("GET", "/a", "")), (left.clone(), two.clone()));
    let grpc = "content-type: application/grpc\r\n";
    assert_eq!((decide("POST", "/a.B/C", grpc), decide("POST", "/a.B/C", "")), (Err(NOT_PLAIN), two.clone()));
    assert_eq!((decide("GET", "/users/1", ""), decide("GET", "/user", "")), (left.clone(), two.clone()));
    assert_eq!(decide("POST", "/files", "x-two:\r\n"), Ok(SERVICE.to_owned()), "none matches");
    let many = "x-other: 1\r\n".repeat(40);
    assert_eq!(decide("GET", "/", &many), left, "more fields than are kept");
}

#[test]
fn kernel_leaves_routes_beyond_its_table_size_to_proxy() {
    let Some(mut decider) = Decider::native() else { return };
    let routes: Vec<_> = (0..40)
        .map(|i| {
            json!({"name": format!("r{i}"), "match": {"path": {"exact": format!("/{i}")}},
            "split": [{"service": SERVICE, "weight": 1}]})
        })
        .collect();
    let routes = Routes::new(&json!({"service": SERVICE, "routes": routes}), "any");
    let mut decide = |path| routes.decide(&mut decider, ["GET", path, ""], "")[0].clone();
    // Eight routes fit, because each has a backend in a split.
    assert_eq!(decide("/7"), Ok(SERVICE.to_owned()));
    assert_eq!(
        (decide("/8"), decide("/39"), decide("/none")),
        (Err(ROUTE_LEFT), Err(ROUTE_LEFT), Err(ROUTE_LEFT))
    );
}
