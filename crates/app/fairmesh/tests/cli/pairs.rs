//! Calls of each pair of services, as counted by callers and by the proxies in front of the called programs.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use fairmesh_test_support::free_port;
use fairmesh_wire::v1::ReadCallsRequest;
use tokio::runtime::Runtime;

use super::{
    calls::echo,
    identities::{agent, domain, has_certificate, start},
    support::{Mesh, wait_until},
};

/// Caller, service and number of calls of each pair.
const PAIRS: [(&str, &str, u64); 4] = [
    ("shop/web", "shop/cart", 6),
    ("shop/web", "shop/stock", 4),
    ("shop/ads", "shop/cart", 3),
    ("shop/ads", "shop/stock", 5),
];

/// Calls by caller and service.
type Counts = BTreeMap<(String, String), u64>;

/// Calls of each pair, as counted by one side.
fn counted(mesh: &Mesh, runtime: &Runtime, by_server: bool) -> Counts {
    let read = async {
        let mut admin = mesh.connect().await.admin();
        admin.read_calls(ReadCallsRequest { window_s: 600, ..Default::default() }).await
    };
    let rows = runtime.block_on(read).unwrap().into_inner().rows;
    let mut pairs = Counts::new();
    for row in rows.into_iter().filter_map(|row| row.calls).filter(|row| row.by_server == by_server) {
        *pairs.entry((row.caller, row.service)).or_default() += row.calls;
    }
    pairs
}

/// Calls of each pair in the latency histograms of a front proxy's metrics page.
fn timed(admin: &str) -> Counts {
    let (mut stream, mut page) = (TcpStream::connect(admin).unwrap(), String::new());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: mesh\r\nconnection: close\r\n\r\n").unwrap();
    stream.read_to_string(&mut page).unwrap();
    let mut pairs = Counts::new();
    for line in page.lines() {
        let Some(series) = line.strip_prefix("http_server_request_duration_seconds_count{") else { continue };
        let label = |name: &str| {
            let value = series.split_once(&format!("{name}=\"")).unwrap().1;
            value.split('"').next().unwrap().to_owned()
        };
        let count: f64 = series.rsplit(' ').next().unwrap().parse().unwrap();
        *pairs.entry((label("fairmesh_caller"), label("fairmesh_callee"))).or_default() += count as u64;
    }
    pairs
}

#[test]
fn callers_and_inbound_proxies_count_same_calls_per_service_pair() {
    let (mesh, _) = domain();
    mesh.apply("kind: Service\nname: shop/cart\n---\nkind: Service\nname: shop/stock\n").ok();
    let (_agent, agent) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let [inbound, listen, front, proxy_admin, register_admin] =
        [(); 5].map(|()| format!("127.0.0.1:{}", free_port()));
    let [cart, stock] = [echo(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let from_to = format!("shop/cart@{inbound}={cart}");
    let proxy =
        ["proxy", "--agent", &agent, "--admin", &proxy_admin, "--listen", &listen, "--inbound", &from_to];
    let _proxy = start(&proxy, None);
    let register = ["register", "shop/stock", "--agent", &agent, "--address", &front, "--program", &stock];
    let _register = start(&[&register[..], &["--admin", &register_admin]].concat(), None);
    for service in ["shop/cart", "shop/stock"] {
        let endpoints = || mesh.run(&["get", "endpoints", service, "--json"]).json();
        wait_until("it is registered", || endpoints()[0]["state"] == "serving");
    }
    for (caller, service, calls) in PAIRS {
        for _ in 0..calls {
            mesh.run(&["call", service, "--agent", &agent, "--as", caller, "/items"]).ok();
        }
    }
    let runtime = Runtime::new().unwrap();
    let name = |(caller, service, calls): (&str, &str, u64)| ((caller.to_owned(), service.to_owned()), calls);
    let expected: Counts = PAIRS.into_iter().map(name).collect();
    for by_server in [false, true] {
        wait_until("all calls of each pair are counted, each once", || {
            let mut seen = counted(&mesh, &runtime, by_server);
            seen.retain(|_, calls| *calls > 0);
            seen == expected
        });
    }
    let timed: Counts = [proxy_admin, register_admin].iter().flat_map(|admin| timed(admin)).collect();
    assert_eq!(timed, expected, "each front times the calls of each caller");
}
