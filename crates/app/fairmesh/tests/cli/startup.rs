//! Processes that start before their control plane, or while the first of several control planes is away.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fairmesh_test_support::free_port;

use super::{
    calls::echo,
    identities::{Killed, start},
    support::{Mesh, wait_until},
};

/// Response codes of DNS (RFC 1035, 4.1.1).
const NO_ERROR: u8 = 0;
const SERVER_FAILURE: u8 = 2;

const CATALOG: &str = "kind: Service\nname: shop/catalog\n";

fn unused() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Queries a DNS server for the address of shop/catalog. Returns the response code; `None` without a response.
fn resolve_catalog(server: &str) -> Option<u8> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["catalog", "shop", "mesh"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.connect(server).unwrap();
    let mut response = [0; 512];
    socket.send(&query).ok()?;
    let length = socket.recv(&mut response).ok()?;
    (length > 3).then_some(response[3] & 0xf)
}

/// Whether a proxy's listener answers a request with 200.
fn answers(listener: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(listener) else { return false };
    let mut response = String::new();
    let request = b"GET / HTTP/1.1\r\nhost: catalog\r\nconnection: close\r\n\r\n";
    stream.write_all(request).is_ok()
        && stream.read_to_string(&mut response).is_ok()
        && response.starts_with("HTTP/1.1 200 ")
}

#[test]
fn process_follows_second_control_plane_while_first_is_away() {
    let mesh = Mesh::start();
    mesh.apply(CATALOG).ok();
    let (away, control) = (format!("unix:{}", mesh.path("away.sock").display()), mesh.address());
    let listed = format!("{away},{control}");
    let repeated = ["--control", &away, "--control", &control];

    let program = format!("127.0.0.1:{}", echo());
    let register = ["register", "shop/catalog", "--region", "eu", "--address", &program];
    let _register = start(&[&register[..], &["--control", &listed]].concat(), None);
    let endpoints = || mesh.run(&["get", "endpoints", "shop/catalog", "--json"]).json();
    wait_until("it is registered", || endpoints()[0]["state"] == "serving");

    for several in [&["--control", &listed][..], &repeated] {
        mesh.run(&[&["call", "shop/catalog"], several].concat()).ok();
    }
    let [proxied, resolver, lookaside, inbound] = [(); 4].map(|()| unused());
    let listen = format!("{proxied}=shop/catalog");
    let served = format!("shop/other@{inbound}={program}");
    let proxy = ["proxy", "--admin", "none", "--listen", &listen, "--region", "eu", "--inbound", &served];
    let dns = ["dns", "--admin", "none", "--listen", &resolver, "--control", &listed];
    let picks = ["lookaside", "--admin", "none", "--listen", &lookaside, "--control", &listed];
    let _processes = [start(&[&proxy[..], &repeated].concat(), None), start(&dns, None), start(&picks, None)];
    wait_until("the proxy forwards", || answers(&proxied));
    wait_until("the program behind the proxy is registered", || {
        mesh.run(&["get", "endpoints", "shop/other", "--json"]).out.contains("serving")
    });
    wait_until("the name resolves", || resolve_catalog(&resolver) == Some(NO_ERROR));
    wait_until("the lookaside picks", || {
        mesh.run(&["call", "shop/catalog", "--lookaside", &lookaside]).code == Some(0)
    });
}

/// Starts a command that logs to the file.
fn start_logged(args: &[&str], log: &str) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(args).env_clear().stdout(Stdio::null()).stderr(File::create(log).unwrap());
    Killed(command.spawn().unwrap())
}

#[test]
fn processes_started_before_control_plane_recover_without_warning() {
    let mut mesh = Mesh::empty();
    #[allow(clippy::disallowed_methods, reason = "real processes wait for a real control plane")]
    let began = Instant::now();
    let logs = ["agent", "proxy", "dns", "lookaside"]
        .map(|name| mesh.path(&format!("{name}.log")).display().to_string());
    let (state, socket) = (mesh.path("web-1").display().to_string(), mesh.path("web-1.sock"));
    let agent = format!("unix:{}", socket.display());
    let control = mesh.address();
    let [listen, inbound, resolver, lookaside] = [(); 4].map(|()| unused());
    let following = ["agent", "--name", "web-1", "--region", "eu", "--admin", "none", "--control", &control];
    let _agent =
        start_logged(&[&following[..], &["--listen", &agent, "--state-dir", &state]].concat(), &logs[0]);
    wait_until("the agent listens", || socket.exists());
    let (listener, program) = (format!("{listen}=shop/catalog"), format!("127.0.0.1:{}", echo()));
    let served = format!("shop/catalog@{inbound}={program}");
    let proxy = ["proxy", "--admin", "none", "--agent", &agent, "--listen", &listener, "--inbound", &served];
    let [dns, picks] = [("dns", &resolver), ("lookaside", &lookaside)]
        .map(|(command, listen)| [command, "--admin", "none", "--agent", &agent, "--listen", listen]);
    let _processes =
        [start_logged(&proxy, &logs[1]), start_logged(&dns, &logs[2]), start_logged(&picks, &logs[3])];
    let logged = || logs.iter().map(|log| fs::read_to_string(log).unwrap()).collect::<Vec<_>>().concat();
    // A query makes the DNS server subscribe to a tenant that its agent does not know yet.
    wait_until("the agent has no records", || resolve_catalog(&resolver) == Some(SERVER_FAILURE));
    wait_until("the proxy is told so", || logged().contains("the agent cannot serve this prefix yet"));
    let assert_no_warning = || {
        // A busy machine may take so long that a warning is right.
        let is_late = began.elapsed() >= Duration::from_secs(5);
        assert!(is_late || !["WARN", "ERROR"].iter().any(|level| logged().contains(level)), "{}", logged());
    };
    assert_no_warning();

    mesh.start_control();
    wait_until("the service is declared", || mesh.apply(CATALOG).code == Some(0));
    wait_until("the name resolves", || resolve_catalog(&resolver) == Some(NO_ERROR));
    wait_until("the proxy forwards", || answers(&listen));
    assert_no_warning();
}
