//! Requests that a health checker may make: the elected checker of a region may make the probe described in the policy,
//! and nothing else. A proxy and `register` terminate mutual TLS.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use fairmesh_identity::{Clock as _, Credentials, Member, SystemClock, Workload};
use fairmesh_model::ServiceName;
use fairmesh_test_support::free_port;
use fairmesh_wire::transport::{EndpointAddress, ExpectedPeer, Transport};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{
    identities::{agent, domain, has_certificate, runtime, start, token},
    support::{Mesh, wait_until},
};

/// Starts a program that answers every request; returns its port and the received heads.
fn program() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
    let heads = Arc::clone(&seen);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let heads = Arc::clone(&heads);
            thread::spawn(move || answer(stream.unwrap(), &heads));
        }
    });
    (port, seen)
}

fn answer(stream: TcpStream, heads: &Mutex<Vec<String>>) {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    let mut head = String::new();
    while reader.read_line(&mut head).is_ok_and(|read| read > 0) {
        if head.ends_with("\r\n\r\n") {
            heads.lock().unwrap().push(std::mem::take(&mut head));
            let _ = writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n");
        }
    }
}

/// A transport with an agent's certificate.
fn transport_of(mesh: &Mesh, agent: &str) -> Transport {
    let own = Credentials::load(&mesh.path(agent).join("identity"), SystemClock.now()).unwrap().unwrap();
    let workload = Arc::<Workload>::default();
    workload.install(own).unwrap();
    Transport::tls(Arc::new(Member::new(workload, None)))
}

/// Response of a server to these bytes.
async fn send(transport: &Transport, service: &ServiceName, to: SocketAddr, bytes: &str) -> String {
    let peer = Some(ExpectedPeer::Service(service));
    let endpoint = EndpointAddress { address: to, peer, accepts_plaintext: false, from: None };
    let mut stream = transport.connect_endpoint(endpoint).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = Vec::new();
    let reading = timeout(Duration::from_secs(10), stream.read_to_end(&mut said)).await;
    assert!(reading.is_ok(), "the connection stays open after {bytes:?}");
    String::from_utf8_lossy(&said).into_owned()
}

const CHECK: &str = "healthCheck: {http: {path: /healthz}, interval: 1s, fall: 1, minimumSamples: 1}";
const RULES: &str = "authorization: {rules: [{name: web, from: [blue/web]}, \
    {name: no-agents, action: deny, from: [fairmesh/agent/*]}]}";

const END: &str = "connection: close\r\n\r\n";

/// The probe `GET /healthz`, requests beyond it, and whether the server accepts each as the probe.
const ATTACKS: [(&str, bool); 8] = [
    ("GET /healthz HTTP/1.1\r\nhost: a\r\n", true),
    ("POST /v1/delete-all HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n", false),
    ("GET /v1/secrets HTTP/1.1\r\nhost: a\r\n", false),
    ("POST /healthz HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n", false),
    ("GET /healthz?all=1 HTTP/1.1\r\nhost: a\r\n", false),
    ("GET /healthz/../v1/secrets HTTP/1.1\r\nhost: a\r\n", false),
    ("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nPOST /v1/delete-all HTTP/1.1\r\nhost: a\r\n", false),
    (
        "GET /healthz HTTP/1.1\r\nhost: a\r\nx-original-url: /v1/delete-all\r\nx-http-method-override: POST\r\n",
        true,
    ),
];

#[test]
fn only_elected_checker_makes_probe_and_no_other_request() {
    let (mesh, tcp) = domain();
    mesh.apply("kind: Service\nname: blue/vault\n---\nkind: Service\nname: blue/bytes\n").ok();
    let (_web, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    let of_red = token(&mesh, &["red-1", "--tenant", "red"]);
    let (_red, _) = agent(&mesh, "red-1", &tcp, Some(&of_red));
    wait_until("the agent of red joins", || has_certificate(&mesh, "red-1"));

    let [(vault, vault_heads), (bytes, bytes_heads)] = [program(), program()];
    let [inbound, listen, front] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let [vault, bytes] = [vault, bytes].map(|port| format!("127.0.0.1:{port}"));
    let at = format!("blue/vault@{inbound}={vault}");
    let proxy = ["proxy", "--agent", &address, "--listen", &listen, "--inbound", &at];
    let register = ["register", "blue/bytes", "--agent", &address, "--address", &front, "--program", &bytes];
    let _processes = [start(&proxy, None), start(&register, None)];
    let services = ["blue/vault", "blue/bytes"];
    for service in services {
        mesh.apply(&format!("kind: Policy\nservice: {service}\n{CHECK}\n{RULES}\n")).ok();
    }
    let call = |service: &str| mesh.run(&["call", service, "/", "--agent", &address, "--as", "blue/web"]);
    let is_healthy = |service: &str| {
        let listed = mesh.run(&["get", "health", service, "--json"]).json();
        listed.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(|one| one["healthy"] == true))
    };
    for service in services {
        wait_until("the service is called", || call(service).code == Some(0));
        wait_until("it is found healthy", || is_healthy(service));
    }

    let [checker, intruder] = ["web-1", "red-1"].map(|agent| transport_of(&mesh, agent));
    for (service, to, heads) in [(services[0], &inbound, &vault_heads), (services[1], &front, &bytes_heads)] {
        let name = ServiceName::new(service).unwrap();
        for (attack, is_probe) in ATTACKS {
            let request = format!("{attack}{END}");
            for (agent, is_accepted) in [(&checker, is_probe), (&intruder, false)] {
                let said = runtime().block_on(send(agent, &name, to.parse().unwrap(), &request));
                let last = said.rfind("HTTP/1.1 ").map(|at| &said[at + 9..at + 12]);
                let expected = if is_accepted { "200" } else { "403" };
                assert_eq!(last, Some(expected), "{service}, {attack:?}: {said}");
            }
        }
        for head in heads.lock().unwrap().iter() {
            let is_honest = head.starts_with("GET / ") || head.starts_with("GET /healthz HTTP/1.1\r\n");
            assert!(is_honest && !head.contains("x-original-url"), "{service} has read {head}");
        }
        assert!(call(service).code == Some(0) && is_healthy(service), "honest work goes on");
    }
}
