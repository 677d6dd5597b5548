//! Callers that connect to IPv6 addresses.

use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{
    Attached,
    local::{CALLS, SERVER, WITHOUT_LOG, called_until_published, run_in},
    requests::CALLER,
    secure::{Front, Place, Secure},
};
use crate::harness::{Spec, World, beside_others, free_port, skipped, tool, until};

/// Connects to an address over IPv6 and asks for a host. Prints the peer's address, the status and the body, or the error of the
/// connect. With `only` and `bound`, the socket has no IPv4.
const ASK: &str = r#"
import socket, sys
port, host, family = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3]
connection = socket.socket(socket.AF_INET6)
connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, family == "only")
if family == "bound":
    connection.bind(("::1", 0))
connection.settimeout(20)
try:
    connection.connect(("::1", port))
    connection.sendall(b"GET / HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host)
    head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    print(*connection.getpeername()[:2], head.split()[1].decode(), body.decode())
except ConnectionRefusedError:
    print("refused")
"#;

/// Responds to each request with a text, on one connection after another.
async fn respond(listener: TcpListener, text: &'static str) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(respond_on(stream, text));
    }
}

async fn respond_on(stream: TcpStream, text: &str) {
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    let (reader, mut writer) = stream.into_split();
    let (mut lines, mut is_last) = (BufReader::new(reader).lines(), false);
    while let Ok(Some(line)) = lines.next_line().await {
        is_last |= line.eq_ignore_ascii_case("connection: close");
        if line.is_empty() && (writer.write_all(response.as_bytes()).await.is_err() || is_last) {
            return;
        }
    }
}

async fn ask(attached: &Attached, port: u16, host: &str, family: &str) -> String {
    attached.run(&["python3", "-c", ASK, &port.to_string(), host, family]).await.ok().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_ipv6_addresses_go_to_proxy_with_their_destination() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("six").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _other = tokio::spawn(respond(listener, "another server"));
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    let ports = ["--port", "80", "--port", &port.to_string()];
    attached.attach_with(&[&["--to", "::1/128"], &ports[..]].concat()).await;

    let curl =
        ["curl", "-6", "--silent", "--include", "--max-time", "20", "--resolve", "hello.shop:80:[::1]"];
    until("the kernel sends requests", async || {
        let before = attached.counter("sent-by-kernel").await;
        let said = attached.run(&[&curl[..], &["http://hello.shop/"; 4]].concat()).await.ok();
        assert_eq!(said.matches("HTTP/1.1 200").count(), 4, "{said}");
        attached.counter("sent-by-kernel").await >= before + 2
    })
    .await;
    let redirected = attached.counter("redirected").await;
    let elsewhere = format!("::1 {port} 200 another server");
    assert_eq!(ask(&attached, port, "elsewhere.test", "both").await, elsewhere);
    let said = ask(&attached, 80, "hello.shop", "both").await;
    assert!(said.starts_with("::1 80 200"), "{said}");
    let further = attached.counter("redirected").await - redirected;
    assert_eq!((further, attached.counter("ipv6-direct").await), (2, 0));

    for family in ["only", "bound"] {
        assert_eq!(ask(&attached, port, "elsewhere.test", family).await, elsewhere, "{family}");
    }
    let further = attached.counter("redirected").await - redirected;
    assert_eq!((further, attached.counter("ipv6-direct").await), (2, 2));
    attached.attach_with(&[&["--to", "::1/128", "--only-services"], &ports[..]].concat()).await;
    for family in ["only", "bound"] {
        assert_eq!(ask(&attached, port, "elsewhere.test", family).await, "refused", "{family}");
    }
    assert_eq!((attached.counter("ipv6-direct").await, attached.counter("refused").await), (2, 2));
    assert_eq!(
        attached.status().await["attachments"][0]["networks"],
        serde_json::json!(["127.96.0.0/16", "::1/128"])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_requests_to_endpoints_at_ipv6_addresses() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("sixserver").await else { return };
    let world = World::start("").await;
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let builder = MeshServer::builder("shop/hello").instance("hello-1").protocol(Protocol::Http1);
    let builder = builder.address(listener.local_addr().unwrap()).agent(world.agent_address());
    let _registered = builder.start().await.unwrap();
    world.serves("shop/hello", "hello-1").await;
    let _server = tokio::spawn(respond(listener, "over IPv6"));
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--to", "::1"]).await;
    until("the kernel sends requests", async || {
        let before = attached.counter("sent-by-kernel").await;
        let curl = ["curl", "-6", "--silent", "--max-time", "20", "--resolve", "hello.shop:80:[::1]"];
        let said = attached.run(&[&curl[..], &["http://hello.shop/"; 8]].concat()).await.ok();
        assert_eq!(said, "over IPv6".repeat(8));
        attached.counter("sent-by-kernel").await >= before + 6
    })
    .await;
}

/// Callers of both families, and a server at an IPv6 address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_server_responses_at_ipv6_addresses_bypass_proxy() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("sixlocal").await else { return };
    let world = World::start("").await;
    let (port, cgroup) = (free_port(), format!("{}-servers", attached.cgroup));
    let program = ["python3", "-c", SERVER, "6", &port.to_string()].map(str::to_owned);
    let _server = run_in(&cgroup, &program, port).await;
    let builder = MeshServer::builder("shop/raw").instance("raw-1").protocol(Protocol::Http1);
    let address = format!("[::1]:{port}").parse().unwrap();
    let _registered = builder.address(address).agent(world.agent_address()).start().await.unwrap();
    world.serves("shop/raw", "raw-1").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--to", "::1", "--servers", &cgroup]).await;
    called_until_published(&attached).await;
    assert!(
        attached.counter("short-cut-requests").await > 0,
        "the sidecar's own requests take the short cut"
    );
    let script = "for at in range(60):\n    ask(b'plain-%d' % (at * 100), b'b' * at)";
    for address in ["127.96.0.1", "::1"] {
        let before = attached.counter("answered-directly").await;
        let caller = CALLER.replace("127.96.0.1", address);
        let said = attached.run(&["python3", "-c", &format!("{caller}{CALLS}{script}")]).await.ok();
        assert_eq!(said, "", "{address}");
        let direct = attached.counter("answered-directly").await - before;
        assert!(
            direct >= 55,
            "{address}: {direct} of 60, without those before the proxy served the connection"
        );
    }
    until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_calls_in_place_of_mtls_to_program_at_ipv6_address() {
    let _machine = beside_others().await;
    for front in [Front::Register, Front::Inbound] {
        let name = format!("six{front:?}").to_lowercase();
        let Some(mesh) = Secure::start_as(&name, "shop/web", (front, Place::OverIpv6)).await else { return };
        let (by_mtls, _) = mesh.call(1).await;
        mesh.calls_by_kernel().await;
        let (said, sent) = mesh.call(100).await;
        assert!(sent >= 95, "{sent} of 100");
        assert!(said.iter().all(|line| *line == by_mtls[0]), "{said:?}, by mutual TLS {by_mtls:?}");
        let rules = "{kind: Authorization, service: shop/raw, rules: [{name: other, from: [shop/other]}]}";
        mesh.ends_within_second(rules, "403").await;
    }
}
