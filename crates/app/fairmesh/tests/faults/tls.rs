//! Programs that speak TLS to a proxy: curl and openssl, with certificates made by openssl.

use std::{
    fs,
    process::{Output, Stdio},
    time::Duration,
};

use fairmesh_model::Protocol;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

use crate::harness::{
    Authority, Process, Program, Proxy, RawServer, Spec, World, beside_others, free_port, read_head,
    read_to_end, run, say, until,
};

/// A proxy with a TLS listener.
struct Secured {
    proxy: Proxy,
    port: u16,
    ca: String,
}

impl Secured {
    /// Starts a proxy with this certificate; `listen` is the part of the option after the address.
    async fn start(world: &World, authority: &Authority<'_>, name: &str, listen: &str) -> Self {
        let port = free_port();
        let arguments = format!("--cores 1 --listen 127.0.0.1:{port}{listen} {}", shown(authority, name));
        let proxy = Proxy::with(world, &arguments).await;
        Self { proxy, port, ca: authority.path("ca.pem") }
    }

    async fn curl(&self, arguments: &str) -> Output {
        curl(self.port, &self.ca, arguments).await
    }

    /// Status, HTTP version and server of a successful curl request.
    async fn get(&self, arguments: &str) -> String {
        let output = self.curl(arguments).await;
        assert!(output.status.success(), "{output:?}\n{}", self.proxy.process.log());
        String::from_utf8(output.stdout).unwrap()
    }
}

fn shown(authority: &Authority<'_>, name: &str) -> String {
    let [pem, key] = ["pem", "key"].map(|end| authority.path(&format!("{name}.{end}")));
    format!("--tls-cert {pem} --tls-key {key}")
}

async fn curl(port: u16, ca: &str, arguments: &str) -> Output {
    Command::new("curl")
        .args(["-sS", "--max-time", "20", "--cacert", ca, "-o", "/dev/null"])
        .args(["-w", "%{http_code} %{http_version} %header{x-instance} %{size_download}"])
        .args(["--resolve", &format!("one.shop:{port}:127.0.0.1"), &format!("https://one.shop:{port}/items")])
        .args(arguments.split_whitespace())
        .kill_on_drop(true)
        .output()
        .await
        .expect("this test needs curl")
}

/// Starts `openssl s_client`, which sends its input over TLS and prints the received bytes.
fn openssl(port: u16, ca: &str, arguments: &str) -> Child {
    Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile", ca])
        .args(["-connect", &format!("127.0.0.1:{port}")])
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("this test needs openssl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_serves_both_http_versions_over_both_tls_versions() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let body = folder.path().join("body");
    fs::write(&body, vec![b'x'; 1 << 20]).unwrap();
    for kind in ["ec", "rsa"] {
        authority.issue(kind, kind);
        let secured = Secured::start(&world, &authority, kind, "+tls").await;
        for (http, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            for tls in ["--tlsv1.2 --tls-max 1.2", "--tlsv1.3"] {
                let words = format!("{http} {tls} --data-binary @{}", body.display());
                assert_eq!(secured.get(&words).await, format!("200 {version} one 0"), "{words}");
            }
        }
        secured.proxy.counts("tls_handshakes_total", 4.0).await;
        let old = secured.curl("--tlsv1.1 --tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0").await;
        assert_eq!(old.status.code(), Some(35), "{old:?}");
        secured.proxy.counts("tls_handshake_failures_total", 1.0).await;
        secured.proxy.counts("connections_open", 0.0).await;
        assert_eq!(secured.proxy.metric("connections_failed_total").await, 0.0);
    }
    drop(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowly_read_tls_response_arrives_complete() {
    const SIZE: usize = 6 << 20;
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let secured = Secured::start(&world, &authority, "proxy", "=shop/one+tls").await;
    for (how, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let words = format!("{how} --limit-rate 4M");
        let served = async {
            let mut stream = server.accept().await;
            read_head(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\nx-instance: raw\r\ncontent-length: {SIZE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b'y'; SIZE]).await.unwrap();
        };
        let (answer, ()) = tokio::join!(secured.get(&words), served);
        assert_eq!(answer, format!("200 {version} raw {SIZE}"));
    }
    // A truncated response must not pass for a complete one.
    let served = async {
        let mut stream = server.accept().await;
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
            .await
            .unwrap();
    };
    let (answer, ()) = tokio::join!(secured.curl("--http1.1"), served);
    assert!(!answer.status.success(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_proto_header_tells_server_whether_client_used_tls() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let secured = Secured::start(&world, &authority, "proxy", "=shop/one+tls").await;
    let asked = async || {
        let mut stream = server.accept().await;
        let head = read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.unwrap();
        head.lines().filter_map(|line| line.strip_prefix("x-forwarded-proto: ")).collect::<Vec<_>>().join(",")
    };
    for words in ["--http1.1", "--http2", "--http2 -H x-forwarded-proto:http"] {
        let (_, told) = tokio::join!(secured.get(words), asked());
        assert_eq!(told, "https", "{words}");
    }
    // A value set by a load balancer that terminates TLS takes precedence.
    for (said, told) in [("", "http"), ("x-forwarded-proto: https\r\n", "https")] {
        let _program =
            say(&secured.proxy.for_one, format!("GET / HTTP/1.1\r\nhost: one.shop\r\n{said}\r\n")).await;
        assert_eq!(asked().await, told, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_is_replaced_live_and_invalid_ones_ignored() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (old, new) = (Authority::new(first.path()), Authority::new(second.path()));
    old.issue("proxy", "ec");
    new.issue("proxy", "rsa");
    let secured = Secured::start(&world, &old, "proxy", "+tls").await;
    secured.get("").await;
    let trusting = async |authority: &Authority<'_>| {
        curl(secured.port, &authority.path("ca.pem"), "").await.status.success()
    };
    assert!(!trusting(&new).await, "it shows what it was given");
    for end in ["pem", "key"] {
        // As tools replace files: atomically, under the same name.
        fs::copy(second.path().join(format!("proxy.{end}")), first.path().join("new")).unwrap();
        fs::rename(first.path().join("new"), first.path().join(format!("proxy.{end}"))).unwrap();
    }
    until("the new one is shown", async || trusting(&new).await).await;
    fs::write(first.path().join("proxy.pem"), "no certificate").unwrap();
    let log = || secured.proxy.process.log();
    until("the broken one is noticed", async || log().contains("holds no certificate in PEM")).await;
    assert!(trusting(&new).await, "what was read before stays in use");
    secured.proxy.reaches("tls_reload_failures_total", 1.0).await;
    fs::copy(second.path().join("proxy.pem"), first.path().join("proxy.pem")).unwrap();
    let reloads = secured.proxy.metric("tls_reloads_total").await;
    until("it is mended", async || secured.proxy.metric("tls_reloads_total").await > reloads).await;
    assert!(trusting(&new).await);
    drop(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_listener_reads_proxy_protocol_and_drops_plaintext() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let secured = Secured::start(&world, &authority, "proxy", "+accept-proxy+tls").await;
    let to = format!("127.0.0.1:{}", secured.port);
    // The test's proxy limits headers, and therefore handshakes, to 2 s.
    let head = "PROXY TCP4 192.0.2.1 198.51.100.2 5 6\r\n";
    for words in ["", "GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n", "\x16\x03\x01"] {
        read_to_end(&mut say(&to, format!("{head}{words}")).await).await;
    }
    secured.proxy.counts("tls_handshake_failures_total", 3.0).await;
    read_to_end(&mut say(&to, "\x16\x03\x01\x02\x00\x01\x00").await).await;
    assert_eq!(secured.proxy.metric("invalid_proxy_headers_total").await, 1.0, "the head comes first");
    assert_eq!(secured.get("--haproxy-protocol").await, "200 2 one 0");
    secured.proxy.counts("connections_open", 0.0).await;
    drop(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_of_tcp_listener_is_terminated_by_proxy() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/db", "db-0").await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let port = free_port();
    let arguments = format!("--listen tcp:127.0.0.1:{port}=shop/db+tls {}", shown(&authority, "proxy"));
    let proxy = Proxy::with(&world, &arguments).await;
    // The proxy accepts any ALPN protocol, since only the servers care.
    let mut program = openssl(port, &authority.path("ca.pem"), "-alpn postgresql -servername db.shop");
    let mut served = server.accept_tunnel().await;
    let (mut input, mut output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    input.write_all(b"ping").await.unwrap();
    let mut said = [0; 4];
    served.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"ping");
    served.write_all(b"pong").await.unwrap();
    output.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"pong");
    served.shutdown().await.unwrap();
    assert!(read_to_end(&mut output).await.is_empty());
    drop(input);
    proxy.counts("tunnels_total", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnel_over_tls_keeps_bytes_sent_before_it_began() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let secured = Secured::start(&world, &authority, "proxy", "=shop/one+tls+connect").await;
    let mut program = openssl(secured.port, &secured.ca, "-servername one.shop");
    let (mut input, mut output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    input.write_all(b"CONNECT one.shop:80 HTTP/1.1\r\nhost: one.shop:80\r\n\r\nping").await.unwrap();
    let mut served = server.accept().await;
    let mut said = [0; 4];
    served.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"ping");
    served.write_all(b"pong").await.unwrap();
    served.shutdown().await.unwrap();
    let told = String::from_utf8(read_to_end(&mut output).await).unwrap();
    assert!(told.starts_with("HTTP/1.1 200 ") && told.ends_with("\r\n\r\npong"), "{told}");
    secured.proxy.counts("tunnels_total", 1.0).await;
    assert_eq!(secured.proxy.metric("tunnels_failed_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_upgrade_and_stop_fail_no_request_over_tls() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let work = Duration::from_secs(1);
    let one = Spec { work, ..Spec::new("shop/one", "one", Protocol::Http1) }.here(&world).await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    let (port, ca) = (free_port(), authority.path("ca.pem"));
    let start = |name: &str| {
        let args = format!(
            "proxy --agent {} --listen 127.0.0.1:{port}=shop/one+tls {} --admin none --client-id proxy --handover {}",
            world.agent_address(),
            shown(&authority, "proxy"),
            world.path("proxy.sock").display()
        );
        Process::start(Program::fairmesh(world.path(&format!("{name}.log")), &args))
    };
    let call = async |http: &str| String::from_utf8(curl(port, &ca, http).await.stdout).unwrap();
    let mut running = start("first");
    until("it serves", async || call("--http2").await == "200 2 one 0").await;
    let mut next = start("second");
    let mut calls = 0;
    while running.has_ended().is_none() {
        let (one, two) = tokio::join!(call("--http1.1"), call("--http2"));
        assert_eq!((one.as_str(), two.as_str()), ("200 1.1 one 0", "200 2 one 0"), "{}", next.log());
        calls += 1;
        assert!(calls < 200, "it does not end: {}", running.log());
    }
    let under_way = || one.server.admission().outstanding.calls;
    let (one, two, ended) = tokio::join!(call("--http1.1"), call("--http2"), async {
        until("both are under way when it is told to stop", async || under_way() == 2).await;
        next.signal(Signal::TERM);
        next.end().await
    });
    assert_eq!((one.as_str(), two.as_str()), ("200 1.1 one 0", "200 2 one 0"));
    assert!(ended.success());
}

#[tokio::test]
async fn proxy_refuses_unusable_certificate_with_hint() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    authority.issue("proxy", "ec");
    authority.issue("other", "ec");
    authority.openssl("pkey -in proxy.key -aes256 -passout pass:secret -out locked.key");
    let file = |name: &str| authority.path(name);
    let with = |cert: &str, key: &str| format!("--tls-cert {} --tls-key {}", file(cert), file(key));
    for (listen, files, words) in [
        ("+tls", String::new(), "add --tls-cert FILE --tls-key FILE"),
        ("", with("proxy.pem", "proxy.key"), "append it to one: --listen"),
        ("+tls", with("proxy.pem", "other.key"), "the private key does not belong to the first certificate"),
        ("+tls", with("none.pem", "proxy.key"), "none.pem: No such file"),
        ("+tls", with("proxy.key", "proxy.key"), "proxy.key holds no certificate in PEM"),
        ("+tls", with("proxy.pem", "locked.key"), "openssl pkey -in OLD -out NEW"),
        ("+tls", with("proxy.pem", "proxy.pem"), "holds no private key in PEM"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command
            .args(["proxy", "--admin", "none", "--agent", "unix:/nonexistent/agent.sock", "--region", "eu"])
            .args(["--listen", &format!("127.0.0.1:0{listen}")])
            .args(files.split_whitespace());
        // Errors in options are distinguished from errors in files.
        let is_typed = files.is_empty() || listen.is_empty();
        let complaint =
            run(command, "", Duration::from_secs(20)).await.fails_with(if is_typed { 2 } else { 1 });
        // Reports are wrapped at the line width.
        let flat = |text: &str| text.replace(' ', "");
        assert!(flat(&complaint).contains(&flat(words)), "{words}: {complaint}");
    }
}
