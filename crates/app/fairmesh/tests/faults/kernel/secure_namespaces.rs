//! Programs in network namespaces with equal addresses and ports: the permits of one reach none of the others.

use std::fs;

use fairmesh_test_support::namespaces::Namespace;

use super::{containers::Container, local::run_in, secure::Secure};
use crate::harness::{beside_others, skipped, tool};

/// Ports of outgoing connections in the namespace of the mesh: few, so that the other namespace can have a connection from each.
const PORTS: [u16; 2] = [41_000, 41_199];

/// A server that responds with its name at both addresses to which connections lead in the namespace of the mesh: its server's,
/// and the virtual address.
const TWO: &str = r#"
import socket, sys, threading

def serve(connection):
    file = connection.makefile("rb")
    while line := file.readline():
        while file.readline().strip():
            pass
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo")

def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

listeners = [socket.create_server(address, backlog=512) for address in (("127.0.0.1", int(sys.argv[1])), ("127.96.0.1", 80))]
for listener in listeners[1:]:
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
accept(listeners[0])
"#;

/// Connects from each port to both addresses, and calls on each connection before and after the next line: the connections of
/// the mesh have the same addresses meanwhile.
const CALLS: &str = r#"
def connected(port, to):
    while True:
        try:
            return connect(port, to)
        except ConnectionRefusedError:
            time.sleep(0.01)

connections = [connected(port, to) for port in range(FIRST, LAST + 1) for to in (("127.0.0.1", SERVER), ("127.96.0.1", 80))]
files = [connection.makefile("rb") for connection in connections]

def calls():
    for connection, file in zip(connections, files):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: raw.shop\r\n\r\n")
        said = read_response(file)
        if said != (b"200", b"two"):
            print("wrong:", said, flush=True)

calls()
print("called", flush=True)
sys.stdin.readline()
calls()
print("done", flush=True)
"#;

#[test]
fn permits_reach_no_program_with_equal_addresses_in_another_namespace() {
    for program in ["python3", "nsenter", "unshare", "ip"] {
        if tool(program).is_none() {
            return skipped("the namespaces are made by util-linux, and their programs are Python", program);
        }
    }
    let here = Namespace::new("here").unwrap();
    here.ip(&["link", "set", "lo", "up"]).unwrap();
    here.within(|| {
        let [first, last] = PORTS;
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", format!("{first} {last}")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(calls_of_both_namespaces());
    });
}

async fn calls_of_both_namespaces() {
    let _machine = beside_others().await;
    let Some(mesh) = Secure::start("namespaces").await else { return };
    let calls = [("FIRST", PORTS[0]), ("LAST", PORTS[1]), ("SERVER", mesh.port)];
    let calls =
        calls.iter().fold(CALLS.to_owned(), |text, (name, port)| text.replace(name, &port.to_string()));
    // A caller and a server of the attached cgroups, as those of the mesh.
    let mut there = Container::start("there", mesh.attached.cgroup.clone(), &calls).await;
    let net = format!("--net=/run/netns/{}", there.network());
    let two = ["nsenter", &net, "python3", "-c", TWO, &mesh.port.to_string()].map(str::to_owned);
    let _two = run_in(&format!("{}-servers", mesh.attached.cgroup), &two, mesh.port).await;
    there.go().await;
    assert_eq!(there.line().await, "called");

    mesh.calls_by_kernel().await;
    let (said, sent) = mesh.call(100).await;
    assert!(sent >= 95, "{sent} of 100");
    let is_own = |line: &String| line.starts_with("200 spiffe://prod/shop/web|By=spiffe://prod/shop/raw;");
    assert!(said.len() == 100 && said.iter().all(is_own), "{said:?}");
    let before = mesh.attached.counter("in-place-of-mtls").await;
    there.go().await;
    assert_eq!(there.rest().await, ["done"]);
    assert_eq!(mesh.attached.counter("in-place-of-mtls").await, before);
}
