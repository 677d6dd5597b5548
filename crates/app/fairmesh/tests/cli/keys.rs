//! Proxies whose private keys are on a key server.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use fairmesh_test_support::{free_port, skipped, tool};
use memchr::memmem;
use tempfile::TempDir;

use super::{
    identities::{Killed, agent, domain, has_certificate},
    support::{Mesh, Run, send, wait_until},
};

/// SPIFFE id of the proxies of agent `web-1`.
const PROXY: &str = "spiffe://prod/fairmesh/proxy/web-1.proxy";

/// A trust domain, with a certificate for proxies.
struct World {
    mesh: Mesh,
    agent: String,
    certificates: TempDir,
    _agent: Killed,
}

/// A running key server or proxy.
struct Running {
    process: Killed,
    log: String,
    listen: String,
    admin: String,
}

fn local() -> String {
    format!("127.0.0.1:{}", free_port())
}

impl World {
    /// Starts the mesh; `None` if the tools for certificates are missing.
    fn start() -> Option<Self> {
        if tool("openssl").is_none() {
            skipped("certificates of listeners cannot be made", "openssl is missing");
            return None;
        }
        let (mesh, _) = domain();
        let (process, address) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        let certificates = tempfile::tempdir().unwrap();
        Some(Self { mesh, agent: address, certificates, _agent: process })
    }

    fn path(&self, name: &str) -> String {
        self.certificates.path().join(name).display().to_string()
    }

    /// Creates a self-signed certificate, `NAME.pem`, and its key, `NAME.key`.
    fn certificate(&self, name: &str, kind: &str) {
        let key = match kind {
            "rsa" => "-newkey rsa:2048",
            _ => "-newkey ec -pkeyopt ec_paramgen_curve:P-256",
        };
        let made = Command::new("openssl")
            .args(format!("req -x509 {key} -nodes -days 2 -subj /CN=edge").split(' '))
            .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &self.path(&format!("{name}.key"))])
            .args(["-out", &self.path(&format!("{name}.pem"))])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    fn run(&self, name: &str, args: &str, listen: String) -> Running {
        let (admin, log) = (local(), self.mesh.path(&format!("{name}.log")));
        let process = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(args.split_whitespace())
            .args(["--admin", &admin, "--agent", &self.agent])
            .env_clear()
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let log = log.display().to_string();
        Running { process: Killed(process), log, listen, admin }
    }

    /// Starts a key server with the key of a certificate, under the name `edge`.
    fn key_server(&self, certificate: &str, caller: &str) -> Running {
        let (listen, key) = (local(), self.path(&format!("{certificate}.key")));
        let args = format!("keyserver --listen {listen} --key edge={key} --allow edge={caller}");
        let server = self.run("keyserver", &args, listen);
        wait_until("the key server is ready", || server.page("/readyz").contains("200 OK"));
        server
    }

    /// Starts a proxy with a certificate whose key is on a key server. The proxy has one thread, so that nothing hides
    /// a wait.
    fn proxy(&self, certificate: &str, server: &str, further: &str) -> Running {
        let (listen, certificate) = (local(), self.path(&format!("{certificate}.pem")));
        // Unless the test sets the timeout, it is longer than the default, for busy machines.
        let timeout = if further.contains("--tls-key-timeout") { "" } else { "--tls-key-timeout 10s" };
        let args = format!(
            "proxy --cores 1 --listen {listen}+tls --tls-cert {certificate} --tls-key-server edge@{server} {timeout} {further}"
        );
        let proxy = self.run("proxy", &args, listen);
        wait_until("the proxy is ready", || proxy.page("/readyz").contains("200 OK"));
        proxy
    }

    /// Makes a request over a new connection; returns the status or the error.
    fn call(&self, proxy: &Running, certificate: &str, further: &[&str]) -> Result<String, String> {
        let output =
            curl(&proxy.listen, &self.path(&format!("{certificate}.pem")), further).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

fn curl(listen: &str, authority: &str, further: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--max-time", "20", "--cacert", authority, "-o", "/dev/null", "-w", "%{http_code}"])
        .arg(format!("https://{listen}/"))
        .args(further)
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Running {
    fn page(&self, path: &str) -> String {
        let mut page = String::new();
        if let Ok(mut stream) = TcpStream::connect(&self.admin) {
            let request = format!("GET {path} HTTP/1.1\r\nhost: mesh\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            // The process may end meanwhile.
            let _ = stream.read_to_string(&mut page);
        }
        page
    }

    /// Value of a series such as `proxy_tls_signatures_total{by="local"}`.
    fn metric(&self, series: &str) -> f64 {
        let page = self.page("/metrics");
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix("fairmesh_")?.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
    }

    fn signed(&self, by: &str) -> f64 {
        self.metric(&format!("proxy_tls_signatures_total{{by=\"{by}\"}}"))
    }

    fn status(&self) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(["proxy", "status", "--admin", &self.admin])
            .env_clear()
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn wait_for_key_server(&self) {
        wait_until("the key server signs", || self.metric("proxy_tls_key_server_up") == 1.0);
    }

    fn wait_for_log(&self, text: &str) {
        wait_until(text, || fs::read_to_string(&self.log).unwrap().contains(text));
    }

    fn signal(&self, signal: &str) {
        send(&self.process.0, signal);
    }
}

/// Whether the writable memory of a process contains each of these byte strings.
fn finds(server: &Running, wanted: &[Vec<u8>]) -> Vec<bool> {
    let process = server.process.0.id();
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let mut found = vec![false; wanted.len()];
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        if rest.starts_with("rw") && memory.read_exact_at(&mut bytes, from).is_ok() {
            for (found, wanted) in found.iter_mut().zip(wanted) {
                *found |= memmem::find(&bytes, wanted).is_some();
            }
        }
    }
    found
}

/// Parts of a private key: of its PEM text, and of its numbers in both byte orders.
fn secrets(world: &World, name: &str) -> Vec<Vec<u8>> {
    let path = world.path(&format!("{name}.key"));
    let der =
        Command::new("openssl").args(["pkey", "-in", &path, "-outform", "DER"]).output().unwrap().stdout;
    let pem = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let mut secrets = vec![lines[lines.len() / 2].as_bytes().to_vec()];
    let scalar = der.windows(5).position(|bytes| bytes == [2, 1, 1, 4, 32]).map(|at| at + 5);
    let numbers = match scalar {
        // For RSA, everything after modulus and public exponent.
        None => &der[320..],
        Some(at) => &der[at..at + 32],
    };
    for chunk in numbers.chunks_exact(16) {
        secrets.push(chunk.to_vec());
        secrets.push(chunk.iter().rev().copied().collect());
    }
    secrets
}

#[test]
fn key_server_signs_for_proxy_and_stores_keys_encrypted() {
    let Some(world) = World::start() else { return };
    for kind in ["ec", "rsa"] {
        world.certificate(kind, kind);
        let server = world.key_server(kind, PROXY);
        // Read before the key file is deleted below.
        let secrets = secrets(&world, kind);
        let fallback = format!("--tls-key {}", world.path(&format!("{kind}.key")));
        let local = world.proxy(kind, &server.listen, &fallback);
        fs::remove_file(world.path(&format!("{kind}.key"))).unwrap();
        let proxy = world.proxy(kind, &server.listen, "");
        proxy.wait_for_key_server();
        for _ in 0..5 {
            assert_eq!(world.call(&proxy, kind, &[]).as_deref(), Ok("404"), "{}", proxy.page("/config"));
        }
        assert_eq!((proxy.signed("key_server"), proxy.signed("local")), (5.0, 0.0));
        assert_eq!(server.metric("keyserver_signatures_total{key=\"edge\"}"), 5.0);
        let status = proxy.status();
        assert!(status.contains(&format!("edge@{}: signs", server.listen)), "{status}");
        let old = world.call(&proxy, kind, &["--tls-max", "1.2"]);
        assert!(old.is_err(), "what is signed in TLS 1.2 has no form: {old:?}");
        if !rustix::process::geteuid().is_root() {
            skipped("the memory of a key server cannot be searched", "this is not root");
            continue;
        }
        let holds_key = |process: &Running| finds(process, &secrets).contains(&true);
        assert!(holds_key(&local), "a proxy that signs by itself has what is searched for");
        assert!(!holds_key(&server), "{kind}");
    }
}

#[test]
fn proxy_signs_locally_while_key_server_fails() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let server = world.key_server("edge", PROXY);
    let fallback = format!("--tls-key-timeout 200ms --tls-key {}", world.path("edge.key"));
    let proxy = world.proxy("edge", &server.listen, &fallback);
    let without = world.proxy("edge", &server.listen, "--tls-key-timeout 3s");
    [&proxy, &without].into_iter().for_each(Running::wait_for_key_server);
    let calls = |proxy| world.call(proxy, "edge", &[]);
    for signal in ["STOP", "KILL"] {
        assert_eq!((calls(&proxy).as_deref(), calls(&without).as_deref()), (Ok("404"), Ok("404")));
        server.signal(signal);
        let before = (proxy.signed("key_server"), proxy.signed("fallback"));
        for _ in 0..3 {
            assert_eq!(calls(&proxy).as_deref(), Ok("404"));
        }
        assert_eq!((proxy.signed("key_server"), proxy.signed("fallback")), (before.0, before.1 + 3.0));
        assert!(calls(&without).is_err());
        assert!(without.metric("proxy_tls_signature_failures_total") >= 1.0);
        let status = proxy.status();
        assert!(status.contains("does not sign: "), "{status}");
        if signal == "STOP" {
            server.signal("CONT");
            [&proxy, &without].into_iter().for_each(Running::wait_for_key_server);
        }
    }
}

#[test]
fn next_key_server_signs_while_first_one_fails() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let [near, far] = [(); 2].map(|()| world.key_server("edge", PROXY));
    let further = format!("--tls-key-server edge@{} --tls-key-timeout 1s", far.listen);
    let proxy = world.proxy("edge", &near.listen, &further);
    let signed = |server: &Running| server.metric("keyserver_signatures_total{key=\"edge\"}");
    let both_sign = || proxy.status().matches(": signs").count() == 2;
    let calls = |count: u32| {
        for _ in 0..count {
            assert_eq!(world.call(&proxy, "edge", &[]).as_deref(), Ok("404"), "{}", proxy.status());
        }
    };
    wait_until("both key servers sign", both_sign);
    calls(3);
    assert_eq!((signed(&near), signed(&far)), (3.0, 0.0));
    near.signal("STOP");
    calls(3);
    assert_eq!(signed(&far), 3.0);
    assert_eq!(proxy.metric("proxy_tls_key_server_up"), 1.0);
    near.signal("CONT");
    wait_until("both key servers sign", both_sign);
    let before = signed(&near);
    calls(2);
    assert_eq!((signed(&near) - before, signed(&far)), (2.0, 3.0));
}

#[test]
fn proxy_rejects_key_server_signature_of_another_key() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    world.certificate("other", "ec");
    let server = world.key_server("other", PROXY);
    let without = world.proxy("edge", &server.listen, "");
    without.wait_for_key_server();
    assert!(world.call(&without, "edge", &[]).is_err());
    without.wait_for_log("its signature does not fit the certificate");
    let fallback = format!("--tls-key {}", world.path("edge.key"));
    let proxy = world.proxy("edge", &server.listen, &fallback);
    proxy.wait_for_key_server();
    assert_eq!(world.call(&proxy, "edge", &[]).as_deref(), Ok("404"));
    assert_eq!((proxy.signed("key_server"), proxy.signed("fallback")), (0.0, 1.0));
    assert_eq!(proxy.metric("proxy_tls_signature_failures_total"), 1.0);
}

#[test]
fn key_server_refuses_unauthorized_caller() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let server = world.key_server("edge", "spiffe://prod/shop/edge");
    let proxy = world.proxy("edge", &server.listen, "");
    assert!(world.call(&proxy, "edge", &[]).is_err());
    proxy.wait_for_log("permit it there with --allow NAME=spiffe://prod/fairmesh/proxy/web-1.proxy");
    server.wait_for_log("refused to sign");
    assert!(server.metric("keyserver_signatures_refused_total{reason=\"not_permitted\"}") >= 1.0);
    assert_eq!(server.metric("keyserver_signatures_total{key=\"edge\"}"), 0.0);
    // Over plaintext, no caller has an identity.
    let mut plain = TcpStream::connect(&server.listen).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    // The only answer may be a TLS alert.
    assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}");
}

/// Relays bytes to a key server while `open`, and records the bytes of the callers.
struct Relay {
    address: String,
    state: Arc<(Mutex<RelayState>, Condvar)>,
}

#[derive(Default)]
struct RelayState {
    is_closed: bool,
    /// Bytes sent on each connection.
    sent: Vec<Vec<u8>>,
}

impl Relay {
    fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::<(Mutex<RelayState>, Condvar)>::default();
        let (shared, to) = (Arc::clone(&state), to.to_owned());
        thread::spawn(move || {
            for caller in listener.incoming() {
                let (mut caller, mut server) = (caller.unwrap(), TcpStream::connect(&to).unwrap());
                let (mut back, mut from) = (caller.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut from, &mut back));
                let shared = Arc::clone(&shared);
                let number = {
                    let mut state = shared.0.lock().unwrap();
                    state.sent.push(Vec::new());
                    state.sent.len() - 1
                };
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(read @ 1..) = caller.read(&mut bytes) {
                        let state = shared.0.lock().unwrap();
                        let mut state = shared.1.wait_while(state, |state| state.is_closed).unwrap();
                        state.sent[number].extend_from_slice(&bytes[..read]);
                        drop(state);
                        if server.write_all(&bytes[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, state }
    }

    fn set_closed(&self, is_closed: bool) {
        self.state.0.lock().unwrap().is_closed = is_closed;
        self.state.1.notify_all();
    }
}

#[test]
fn slow_key_server_delays_no_other_proxy_connection() {
    const HANDSHAKES: usize = 8;
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let server = world.key_server("edge", PROXY);
    let relay = Relay::start(&server.listen);
    let plain = local();
    let further = format!("--listen {plain} --tls-key-timeout 10s");
    let proxy = world.proxy("edge", &relay.address, &further);
    proxy.wait_for_key_server();
    relay.set_closed(true);
    let authority = world.path("edge.pem");
    let mut waiting: Vec<_> =
        (0..HANDSHAKES).map(|_| Killed(curl(&proxy.listen, &authority, &[]).spawn().unwrap())).collect();
    wait_until("all handshakes wait for the key server", || {
        // The connections of the calls and of the page request; the plaintext listener has none yet.
        proxy.metric("proxy_connections_open") == 8.0
    });
    let mut stream = TcpStream::connect(&plain).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..100 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer).expect("the loop of the proxy is blocked");
        assert!(answer[..read].starts_with(b"HTTP/1.1 404 "));
    }
    assert!(waiting.iter_mut().all(|call| call.0.try_wait().unwrap().is_none()));
    assert_eq!(proxy.signed("key_server"), 0.0);
    relay.set_closed(false);
    for call in &mut waiting {
        assert!(call.0.wait().unwrap().success());
    }
    assert_eq!(proxy.signed("key_server"), 8.0);
}

#[test]
fn key_server_signs_nothing_for_replayed_connection() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let server = world.key_server("edge", PROXY);
    let relay = Relay::start(&server.listen);
    let proxy = world.proxy("edge", &relay.address, "");
    proxy.wait_for_key_server();
    let sent = || relay.state.0.lock().unwrap().sent.clone();
    let connections = sent().len();
    assert_eq!(world.call(&proxy, "edge", &[]).as_deref(), Ok("404"));
    let signatures = || server.metric("keyserver_signatures_total{key=\"edge\"}");
    assert_eq!(signatures(), 1.0);
    let recorded = sent();
    assert_eq!(recorded.len(), connections, "the connection was there before");
    let mut replayed = TcpStream::connect(&server.listen).unwrap();
    replayed.write_all(recorded.last().unwrap()).unwrap();
    replayed.shutdown(Shutdown::Write).unwrap();
    // The connection ends when the handshake fails.
    let _ = replayed.read_to_end(&mut Vec::new());
    assert_eq!(signatures(), 1.0);
}

#[test]
fn key_server_refuses_unusable_key_with_hint() {
    let Some(world) = World::start() else { return };
    world.certificate("edge", "ec");
    let key = world.path("edge.key");
    let run = |args: &str| -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_fairmesh"))
            .args(args.split_whitespace())
            .args(["--agent", &world.agent])
            .env_clear()
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    };
    let flat = |text: &str| text.split_whitespace().collect::<String>();
    for (args, problem) in [
        (format!("keyserver --key edge={key}"), "--allow"),
        (format!("keyserver --key edge={key} --allow other={PROXY}"), "add --key other=FILE"),
        (format!("keyserver --key edge={}.none --allow edge={PROXY}", key), "check that it exists"),
        (
            format!("keyserver --key edge={} --allow edge={PROXY}", world.path("edge.pem")),
            "holds no private key",
        ),
        ("proxy --listen 127.0.0.1:0+tls --tls-key-server edge@127.0.0.1:1".into(), "--tls-cert"),
        (format!("proxy --listen 127.0.0.1:0+tls --tls-cert {}", world.path("edge.pem")), "--tls-key"),
        (format!("proxy --tls-cert {} --tls-key-server edge", world.path("edge.pem")), "NAME@IP:PORT"),
    ] {
        let run = run(&args);
        assert!(matches!(run.code, Some(1 | 2)), "{args}: {run:?}");
        assert!(flat(&run.err).contains(&flat(problem)), "{problem}: {}", run.err);
    }
}
