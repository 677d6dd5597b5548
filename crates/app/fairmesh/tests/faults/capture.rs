//! A proxy captures programs that know nothing of it: the kernel redirects their connections.

mod passing;

use std::{
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
};

use crate::harness::{
    Machines, Process, Program, Proxy, Run, Spec, THERE, World, beside_others, free_port, path, run, skipped,
    until,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// User id of `nobody`. Programs run as that user, while the proxy runs as root.
const NOBODY: &str = "65534";

/// Programs on the first machine, with host names from a hosts file.
struct Programs {
    folder: PathBuf,
    user: &'static str,
}

impl Programs {
    fn new(world: &World, user: &'static str) -> Self {
        // Only the second machine has these addresses, so a route to it is enough.
        let hosts = format!(
            "10.78.0.9 one.shop two.shop far.shop\nfd00:78::9 one.shop\n{THERE} elsewhere.example\n127.0.0.1 localhost\n"
        );
        fs::write(world.path("hosts"), hosts).unwrap();
        Self { folder: world.path(""), user }
    }

    /// Runs a program as `nobody`, with permission to read all files, since it may be installed anywhere.
    async fn run(&self, program: &[&str]) -> Run {
        let rights = "+dac_override,+dac_read_search";
        let mut command = Command::new("/bin/sh");
        command.arg("-c");
        command.arg(format!(
            "PATH={}; export PATH; exec unshare --mount sh -c 'mount --bind \"$0\" /etc/hosts && \
             exec setpriv --reuid {} --clear-groups --inh-caps {rights} --ambient-caps {rights} \"$@\"' \"$0\" \"$@\"",
            path(),
            self.user,
        ));
        command.arg(self.folder.join("hosts")).args(program);
        run(command, "", PATIENCE).await
    }

    async fn curl(&self, arguments: &[&str]) -> Run {
        self.run(&[&["curl", "--silent", "--include", "--max-time", "20"], arguments].concat()).await
    }

    async fn python(&self, script: &str) -> String {
        self.run(&["python3", "-c", script]).await.ok()
    }
}

/// Runs `fairmesh proxy capture`.
async fn capture(arguments: &str) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command.args(["proxy", "capture"]).args(arguments.split_whitespace());
    run(command, "", PATIENCE).await
}

/// All nftables rules of the machine.
async fn rules() -> String {
    nft(&["list", "ruleset"], "").await
}

async fn nft(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("/usr/bin/env");
    command.arg(format!("PATH={}", path())).arg("nft").args(arguments);
    run(command, input, PATIENCE).await.ok()
}

/// Data that programs sent to a server outside the mesh, which answers HTTP requests and echoes anything else.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn serve(&self, listener: std::net::TcpListener, greeting: &'static str) {
        let (listener, heard) = (TcpListener::from_std(listener).unwrap(), self.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(heard.clone().answer(stream, greeting));
            }
        });
    }

    async fn answer(self, mut stream: TcpStream, greeting: &'static str) {
        let _ = stream.write_all(greeting.as_bytes()).await;
        let mut said = vec![0; 4096];
        let Ok(length) = stream.read(&mut said).await else { return };
        said.truncate(length);
        self.0.lock().unwrap().push(String::from_utf8_lossy(&said).into_owned());
        let http = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nelsewhere";
        let answer = if said.starts_with(b"GET / ") { &http[..] } else { &said };
        let _ = stream.write_all(answer).await;
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// An HTTP/2-only server on the second machine, outside the mesh. Its response names the requested host.
fn serve_http2(listener: std::net::TcpListener) {
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(async |request: Request<Incoming>| {
                let asked = format!("asked for {}", request.uri());
                let marked = request.headers().keys().any(|name| name.as_str().contains("fairmesh"));
                assert!(!marked, "it is passed on as it was: {:?}", request.headers());
                Ok::<_, Infallible>(Response::new(asked))
            });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
        }
    });
}

/// Starts a proxy that accepts captured connections of both address families.
async fn capturing(world: &World, more: &str) -> (Proxy, u16) {
    let port = free_port();
    let listen = format!("--listen capture:127.0.0.1:{port}{more} --listen capture:[::1]:{port}{more}");
    (Proxy::with(world, &listen).await, port)
}

#[test]
fn capture_sends_programs_through_proxy_and_removes_its_rules_at_end() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl", "python3", "unshare", "setpriv"]) else {
        return;
    };
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
        let _two = Spec::new("shop/two", "two", Protocol::Http2).here(&world).await;
        let heard = Heard::default();
        heard.serve(machines.listen_there(80), "");
        heard.serve(machines.listen_there(2525), "220 hello\r\n");
        serve_http2(machines.listen_there(8080));
        let (proxy, port) = capturing(&world, "").await;
        let programs = Programs::new(&world, NOBODY);

        let before = rules().await;
        let set_up = format!("--at 127.0.0.1:{port},[::1]:{port} --port 80,2525,8080");
        let told = capture(&set_up).await.ok();
        assert!(told.contains("not by uid 0") && told.contains("--undo"), "{told}");
        let captured = rules().await;
        assert!(captured.contains("table inet fairmesh_capture"), "{captured}");
        assert_eq!(capture(&format!("{set_up} --json")).await.json()["captured"], true);
        assert_eq!(rules().await, captured, "twice is as once");

        services_are_called(&programs).await;
        proxy.counts("captured_connections_served_total", 6.0).await;
        the_rest_goes_on(&programs, &heard).await;
        // Over HTTP/2, each request names its host.
        proxy.counts("captured_connections_served_total", 8.0).await;
        proxy.counts("captured_requests_passthrough_total", 1.0).await;
        proxy.counts("captured_connections_passthrough_total", 5.0).await;
        proxy.counts("captured_loops_total", 0.0).await;

        // The reset may arrive before the program sees the connection established.
        let direct = async { TcpStream::connect(("127.0.0.1", port)).await?.read(&mut [0]).await };
        assert!(direct.await.is_err(), "no rule redirected this connection");
        proxy.counts("captured_loops_total", 1.0).await;

        assert!(capture("--undo").await.ok().contains("any more"));
        assert_eq!(rules().await, before);
        assert!(capture("--undo").await.ok().contains("nothing was captured"));
        assert_eq!(
            programs.curl(&["--max-time", "1", "http://one.shop/"]).await.code,
            Some(28),
            "no host has this address"
        );
    });
}

async fn services_are_called(programs: &Programs) {
    for (arguments, instance) in [
        (&["-4", "http://one.shop/items"][..], "x-instance: one"),
        (&["-6", "http://one.shop/items"], "x-instance: one"),
        (&["http://two.shop/"], "x-instance: two"),
        (&["--http2-prior-knowledge", "http://two.shop/"], "x-instance: two"),
    ] {
        let answer = programs.curl(arguments).await.ok();
        assert!(answer.contains(instance), "{arguments:?}: {answer}");
    }
    let python = "import urllib.request as u; print(u.urlopen('http://two.shop/').headers['x-instance'])";
    assert_eq!(programs.python(python).await, "two\n");
    let connect = "import http.client as h; c = h.HTTPConnection('one.shop'); c.request('CONNECT', 'one.shop:80'); \
        print(c.getresponse().status)";
    assert_eq!(programs.python(connect).await, "405\n", "tunnels are no way around here either");
}

async fn the_rest_goes_on(programs: &Programs, heard: &Heard) {
    for url in ["http://elsewhere.example/", "http://10.78.0.2/"] {
        let answer = programs.curl(&[url]).await.ok();
        assert!(answer.ends_with("\r\n\r\nelsewhere"), "{answer}");
    }
    let answer = programs.curl(&["--http2-prior-knowledge", "http://elsewhere.example:8080/a"]).await.ok();
    assert!(answer.ends_with("asked for http://elsewhere.example:8080/a"), "{answer}");
    let first = heard.all()[0].clone();
    assert!(
        first.starts_with("GET / HTTP/1.1\r\nHost: elsewhere.example\r\n") && !first.contains("fairmesh"),
        "{first}"
    );
    // Bytes that are no HTTP, a possible prefix of an HTTP request, and a server-first protocol.
    for (port, say, hear) in [(80, "\\x16\\x03\\x01", "b'\\x16\\x03\\x01'\n"), (80, "HELO", "b'HELO'\n")] {
        let script = format!(
            "import socket; s = socket.create_connection(('{THERE}', {port})); s.sendall(b'{say}'); print(s.recv(99))"
        );
        assert_eq!(programs.python(&script).await, hear);
    }
    let script = format!(
        "import socket; s = socket.create_connection(('{THERE}', 2525)); print(s.recv(99)); s.sendall(b'QUIT'); print(s.recv(99))"
    );
    assert_eq!(programs.python(&script).await, "b'220 hello\\r\\n'\nb'QUIT'\n");
    // A connection that carries calls to services carries nothing else.
    let script = "import http.client as h; c = h.HTTPConnection('one.shop')\n\
        for host in ['one.shop', 'elsewhere.example']:\n \
        c.request('GET', '/', headers={'Host': host}); a = c.getresponse(); a.read(); print(a.status)";
    assert_eq!(programs.python(script).await, "200\n421\n");
}

#[test]
fn proxy_that_captures_its_own_connections_breaks_loop() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl", "unshare", "setpriv"]) else { return };
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        // The server is on the second machine, so that calls to it are captured too.
        let far = MeshServer::builder("shop/far").instance("far").address("10.78.0.9:80".parse().unwrap());
        let far = far.protocol(Protocol::Http1).agent(world.agent_address()).start().await.unwrap();
        world.serves("shop/far", "far").await;
        let heard = Heard::default();
        heard.serve(machines.listen_there(80), "");
        let (proxy, port) = capturing(&world, "").await;
        let programs = Programs::new(&world, NOBODY);

        let at = format!("--at 127.0.0.1:{port}");
        let script = capture(&format!("{at} --dry-run")).await.ok();
        assert_eq!(rules().await, "", "a dry run changes nothing");
        let excepted = "\t\tmeta skuid { 0 } return\n";
        assert!(script.contains(excepted), "{script}");
        nft(&["-f", "-"], &script.replace(excepted, "")).await;

        let answer = programs.curl(&["http://far.shop/"]).await.ok();
        assert!(answer.starts_with("HTTP/1.1 508 ") && answer.contains("except the proxy"), "{answer}");
        proxy.counts("captured_loops_total", 1.0).await;
        assert_ne!(programs.curl(&["http://elsewhere.example/"]).await.code, Some(0));
        proxy.counts("captured_loops_total", 2.0).await;
        assert!(heard.all().is_empty());

        capture(&at).await.ok();
        let answer = programs.curl(&["http://elsewhere.example/"]).await.ok();
        assert!(answer.ends_with("elsewhere"), "{answer}");
        far.shutdown().await;
    });
}

#[test]
fn capture_with_watch_ends_when_its_proxy_ends() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl", "unshare", "setpriv"]) else { return };
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
        let heard = Heard::default();
        heard.serve(machines.listen_there(80), "");
        let (mut proxy, port) = capturing(&world, "+only-services").await;
        let programs = Programs::new(&world, NOBODY);
        let at = format!("--at 127.0.0.1:{port}");

        let nobody =
            programs.run(&[env!("CARGO_BIN_EXE_fairmesh"), "proxy", "capture", "--except-uid", "1"]).await;
        assert!(nobody.fails().contains("CAP_NET_ADMIN"));
        for (arguments, hint) in
            [(format!("{at} --uid root"), "--except-cgroup"), ("--at 127.0.0.1:1".into(), "--except-uid")]
        {
            let refused = capture(&arguments).await;
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.err.contains(hint), "{refused:?}");
        }

        let before = rules().await;
        let watch = Program::fairmesh(world.path("watch.log"), &format!("proxy capture --watch {at}"));
        let mut watch = Process::start(watch);
        until("it is captured", async || rules().await != before).await;
        assert!(programs.curl(&["http://one.shop/"]).await.ok().contains("x-instance: one"));
        let answer =
            programs.curl(&["http://nobody.shop/", "--resolve", "nobody.shop:80:10.78.0.2"]).await.ok();
        assert!(answer.starts_with("HTTP/1.1 404 "), "only services: {answer}");
        proxy.process.kill().await;
        until("nothing is captured", async || !rules().await.contains("dnat")).await;
        assert!(programs.curl(&["http://elsewhere.example/"]).await.ok().ends_with("elsewhere"));
        proxy.process.restart();
        until("it is captured again", async || rules().await.contains("dnat")).await;
        watch.signal(Signal::TERM);
        assert!(watch.end().await.success());
        assert_eq!(rules().await, before);
    });
}

#[test]
fn failed_capture_with_watch_leaves_nothing_captured() {
    let Some(machines) = Machines::new(&["ip", "nft", "python3", "unshare", "setpriv"]) else { return };
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let (mut proxy, port) = capturing(&world, "").await;
        let programs = Programs::new(&world, NOBODY);
        let before = rules().await;
        let watch = format!("proxy capture --watch --at 127.0.0.1:{port} --uid {NOBODY}");
        let mut watch = Process::start(Program::fairmesh(world.path("watch.log"), &watch));
        until("it is captured", async || rules().await != before).await;
        proxy.process.kill().await;
        // The listening programs cannot be distinguished from the programs to capture.
        let script = format!(
            "import socket, sys; s = socket.create_server(('127.0.0.1', {port})); s.settimeout(20); s.accept()"
        );
        let instead = async {
            let _ = programs.run(&["python3", "-c", &script]).await;
        };
        let ends = async {
            let status = watch.end().await;
            // Makes the program end.
            let _ = TcpStream::connect(("127.0.0.1", port)).await;
            status
        };
        let (status, ()) = tokio::join!(ends, instead);
        assert_eq!(status.code(), Some(2), "{}", watch.log());
        assert!(watch.log().contains("--except-cgroup"), "{}", watch.log());
        assert_eq!(rules().await, before);
    });
}

/// A cgroup v2, if this machine has them.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        let folder = root.join(format!("fairmesh-capture-{}", std::process::id()));
        fs::create_dir(&folder).ok().map(|()| Self(folder))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

#[test]
fn capture_excludes_proxy_by_its_cgroup() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl", "unshare", "setpriv"]) else { return };
    let Some(group) = Group::new() else {
        return skipped("a proxy cannot be told by its cgroup", "there are none of version 2");
    };
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
        let heard = Heard::default();
        heard.serve(machines.listen_there(80), "");
        let (mut proxy, port) = capturing(&world, "").await;
        fs::write(group.0.join("cgroup.procs"), proxy.process.pid().as_raw_nonzero().to_string()).unwrap();
        let programs = Programs::new(&world, "0");
        capture(&format!("--at 127.0.0.1:{port} --except-cgroup {}", group.0.display())).await.ok();
        assert!(programs.curl(&["http://one.shop/"]).await.ok().contains("x-instance: one"));
        assert!(programs.curl(&["http://elsewhere.example/"]).await.ok().ends_with("elsewhere"));
        proxy.counts("captured_loops_total", 0.0).await;
        proxy.process.kill().await;
    });
}
