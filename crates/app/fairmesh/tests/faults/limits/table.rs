//! Every listener is in the table of `fairmesh_listen` and in `docs/limits.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use fairmesh_listen::listener_table::LISTENERS;
use rustix::process::Pid;

use super::fleet::{Fleet, get, program};
use crate::harness::{Process, beside_others, free_port, until};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/limits.md");

/// Names of each process's listeners in metrics; empty if they are counted otherwise.
type Rows = BTreeMap<&'static str, Vec<&'static str>>;

fn rows() -> Rows {
    let mut rows = Rows::new();
    for listener in LISTENERS {
        rows.entry(listener.process).or_default().push(listener.name);
    }
    rows
}

#[test]
fn limits_page_matches_listener_table() {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    let section = text.split("\n## Listeners\n").nth(1).unwrap().trim_start().split("\n\n").next().unwrap();
    let documented = section.lines().skip(2).map(|row| {
        let cells: Vec<_> =
            row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        [cells[0], cells[1], cells[2]]
    });
    let documented: BTreeSet<_> = documented.collect();
    let table = LISTENERS.iter().map(|listener| [listener.process, listener.name, listener.peers.as_str()]);
    assert_eq!(documented, table.collect());
}

/// Number of listening sockets of a process.
fn listening(pid: Pid) -> usize {
    let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let own: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    // Column of the state, its value for a listening socket, and column of the inode.
    let tables = [("tcp", 3, "0A", 9), ("tcp6", 3, "0A", 9), ("unix", 3, "00010000", 6)];
    let mut found = 0;
    for (table, state, listens, inode) in tables {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<_> = line.split_whitespace().collect();
            found += usize::from(words[state] == listens && own.contains(words[inode]));
        }
    }
    found
}

/// Names of the listeners that a process counts.
async fn counted(http: &str, kind: &str) -> BTreeSet<String> {
    let page = get(http, "/metrics").await.unwrap();
    let prefix = format!("fairmesh_{kind}_listener_connections{{listener=\"");
    page.lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.split('"').next()?.to_owned())).collect()
}

/// A gateway and a node, each with the address of its pages. Without a trust domain they listen but accept no
/// connections.
async fn gateway_and_node(fleet: &Fleet) -> [(Process, String); 2] {
    let [gateway, gateway_http, node, node_http, capture] =
        [(); 5].map(|()| format!("127.0.0.1:{}", free_port()));
    let start = |kind: &str, args: String| {
        let (agent, handover) = (fleet.agent_socket(), fleet.path(&format!("{kind}-handover.sock")));
        let args =
            format!("{kind} --agent unix:{} --handover {} {args}", agent.display(), handover.display());
        Process::start(program(fleet.path(&format!("{kind}.log")), &args, None))
    };
    let gateway_process = start("gateway", format!("--listen {gateway} --admin {gateway_http}"));
    let pod = format!("--gateway {gateway} --capture {capture} --pod red/web@{node}=127.0.0.1:1");
    let node_process = start("node", format!("{pod} --admin {node_http}"));
    for http in [&gateway_http, &node_http] {
        until("it has pages", async || get(http, "/healthz").await.is_some()).await;
    }
    [(gateway_process, gateway_http), (node_process, node_http)]
}

/// `register` for a program that callers reach directly, with the address of its pages.
async fn start_register(fleet: &Fleet) -> (Process, String) {
    let [program_address, http] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "register shop/registered --agent unix:{} --address {program_address} --admin {http}",
        fleet.agent_socket().display()
    );
    let process = Process::start(program(fleet.path("register.log"), &args, None));
    until("it has pages", async || get(&http, "/healthz").await.is_some()).await;
    (process, http)
}

/// A DNS server, with the address of its pages.
async fn start_dns(fleet: &Fleet) -> (Process, String) {
    let [queries, http] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args =
        format!("dns --agent unix:{} --listen {queries} --admin {http}", fleet.agent_socket().display());
    let process = Process::start(program(fleet.path("dns.log"), &args, None));
    until("it has pages", async || get(&http, "/healthz").await.is_some()).await;
    (process, http)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_table_has_every_listener_of_every_process() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let [traffic, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "proxy --agent unix:{} --listen {traffic} --admin {admin} --handover {} --client-id proxy",
        fleet.agent_socket().display(),
        fleet.path("handover.sock").display()
    );
    let proxy = Process::start(program(fleet.path("proxy.log"), &args, None));
    until("the proxy has pages", async || get(&admin, "/healthz").await.is_some()).await;
    let (key_server, keys_http) = fleet.start_key_server().await;
    let [(gateway, gateway_http), (node, node_http)] = gateway_and_node(&fleet).await;
    let (register, register_http) = start_register(&fleet).await;
    let (dns, dns_http) = start_dns(&fleet).await;
    let mut rows = rows();
    for (name, kind, process, http) in [
        ("control plane", "control", &fleet.control, &fleet.control_http),
        ("replica", "replica", &fleet.replica, &fleet.replica_http),
        ("agent", "agent", &fleet.agent, &fleet.agent_http),
        ("lookaside", "lookaside", &fleet.lookaside, &fleet.lookaside_http),
        ("key server", "keyserver", &key_server, &keys_http),
        ("proxy", "proxy", &proxy, &admin),
        ("gateway", "gateway", &gateway, &gateway_http),
        ("node", "node", &node, &node_http),
        ("register", "register", &register, &register_http),
        ("dns", "dns", &dns, &dns_http),
    ] {
        let listed = rows.remove(name).unwrap_or_default();
        let labels: BTreeSet<_> =
            listed.iter().filter(|label| !label.is_empty()).map(|label| label.to_string()).collect();
        assert_eq!(
            counted(http, kind).await,
            labels,
            "listeners that the {name} counts, and those of the table"
        );
        let sockets = listening(process.pid());
        assert_eq!(
            sockets,
            listed.len(),
            "the {name} listens on {sockets} sockets; the table has {listed:?}"
        );
    }
    assert_eq!(
        rows.into_keys().collect::<Vec<_>>(),
        ["a program's server"],
        "processes that are not tested here"
    );
}
