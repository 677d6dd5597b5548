//! Capture on a router: only connections that pass through the machine are captured, and nothing else changes.

use std::fs;

use fairmesh_model::Protocol;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::timeout,
};

use super::{Heard, NOBODY, PATIENCE, Programs, capture, capturing, nft, rules};
use crate::harness::{Machines, Process, Program, Spec, THERE, World, beside_others, path, run, until};

/// Requests of programs behind the router: to a service over either address family, and to a host outside the mesh.
const TO_SERVICE: [[&str; 3]; 2] = [
    ["--connect-to", "one.shop:80:10.78.0.9:80", "http://one.shop/"],
    ["--connect-to", "one.shop:80:[fd00:78::9]:80", "http://one.shop/"],
];
const ELSEWHERE: [&str; 1] = ["http://10.78.0.2/"];

#[test]
fn capture_of_forwarded_connections_removes_its_rules_at_end() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl", "unshare", "setpriv"]) else { return };
    let behind = machines.behind();
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
        Heard::default().serve(machines.listen_there(80), "");
        let (mut proxy, port) = capturing(&world, "+transparent").await;
        let before = (rules().await, routes().await);
        let set_up = format!("--at 127.0.0.1:{port},[::1]:{port} --from 10.79.0.0/24,fd00:79::/64 --own");
        let script = capture(&format!("{set_up} --dry-run")).await.ok();
        assert!(
            script.starts_with("# ip -4 rule add ") && script.contains("tproxy ip6 to [::1]"),
            "{script}"
        );
        assert_eq!((rules().await, routes().await), before, "a dry run changes nothing");
        capture(&set_up).await.ok();
        let captured = (rules().await, routes().await);
        capture(&set_up).await.ok();
        assert_eq!((rules().await, routes().await), captured, "twice is as once");

        for arguments in TO_SERVICE {
            let answer = behind.curl(&arguments).await.ok();
            assert!(answer.contains("x-instance: one"), "{answer}");
        }
        proxy.counts("captured_connections_served_total", 2.0).await;
        assert!(behind.curl(&ELSEWHERE).await.ok().ends_with("elsewhere"));
        proxy.counts("captured_connections_passthrough_total", 1.0).await;
        assert_eq!(behind.curl(&["http://10.79.0.1/"]).await.code, Some(7), "no server of the router itself");
        let programs = Programs::new(&world, NOBODY);
        assert!(programs.curl(&ELSEWHERE).await.ok().ends_with("elsewhere"));
        proxy.counts("captured_connections_passthrough_total", 2.0).await;

        let told = capture(&format!("--at 127.0.0.1:{port} --from 10.79.0.0/24")).await.ok();
        assert!(!told.contains("not by uid") && !routes().await.contains("IPv6: 7415"), "{told}");
        assert!(programs.curl(&ELSEWHERE).await.ok().ends_with("elsewhere"));
        assert!(behind.curl(&ELSEWHERE).await.ok().ends_with("elsewhere"));
        proxy.counts("captured_connections_passthrough_total", 3.0).await;
        proxy.counts("captured_loops_total", 0.0).await;

        proxy.process.kill().await;
        assert_eq!(behind.curl(&ELSEWHERE).await.code, Some(7), "refused, and not let past the proxy");
        assert!(capture("--undo").await.ok().contains("any more"));
        assert_eq!((rules().await, routes().await), before);
        assert!(
            behind.curl(&ELSEWHERE).await.ok().ends_with("elsewhere"),
            "the machine is a router as before"
        );
    });
}

#[test]
fn capture_leaves_existing_external_and_redirected_connections_alone() {
    let Some(machines) = Machines::new(&["ip", "nft", "curl"]) else { return };
    let behind = machines.behind();
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
        let heard = Heard::default();
        heard.serve(machines.listen_there(80), "");
        let (mut proxy, port) = capturing(&world, "+transparent").await;
        // Redirects services as Kubernetes does.
        let redirects = "table ip cluster {\nchain services {\ntype nat hook prerouting priority dstnat\n\
            ip daddr 10.96.0.1 tcp dport 80 dnat to 10.78.0.2:80\n}\n}\n";
        nft(&["-f", "-"], redirects).await;
        let before = rules().await;
        let mut began = talking(behind.connect("10.78.0.2:80".parse().unwrap()));

        let watch =
            format!("proxy capture --watch --json --at 127.0.0.1:{port} --from 10.79.0.0/24 --to 10.0.0.0/8");
        let mut watch = Process::start(Program::fairmesh(world.path("watch.log"), &watch));
        until("it is captured", async || rules().await.contains("tproxy")).await;
        began.write_all(b"HELO").await.unwrap();
        let mut answer = [0; 4];
        timeout(PATIENCE, began.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HELO", "what is open stays as it is");
        let server = behind.listen();
        let _from_outside = machines.connect_there(server.local_addr().unwrap());
        let to_cluster = ["--connect-to", "one.shop:80:10.96.0.1:80", "http://one.shop/"];
        assert!(behind.curl(&to_cluster).await.ok().contains("x-instance: one"));
        proxy.counts("captured_connections_served_total", 1.0).await;

        proxy.process.kill().await;
        until("nothing is captured", async || !rules().await.contains("tproxy")).await;
        assert!(behind.curl(&["http://10.96.0.1/"]).await.ok().ends_with("elsewhere"));
        watch.signal(Signal::TERM);
        assert!(watch.end().await.success());
        assert_eq!(rules().await, before);
        assert!(watch.log().contains("\"captured\": true"), "{}", watch.log());
    });
}

/// A server that echoes everything.
fn serve_echo(listener: std::net::TcpListener) {
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
}

#[test]
fn captured_connections_survive_stop_of_watched_proxy() {
    let Some(machines) = Machines::new(&["ip", "nft", "python3", "unshare", "setpriv"]) else { return };
    let behind = machines.behind();
    machines.run(|| async {
        let _machine = beside_others().await;
        let world = World::start("").await;
        serve_echo(machines.listen_there(80));
        let (proxy, port) = capturing(&world, "+transparent").await;
        let programs = Programs::new(&world, NOBODY);
        let before = (rules().await, routes().await);
        let watch = format!("proxy capture --watch --at 127.0.0.1:{port} --from 10.79.0.0/24 --own");
        let mut watch = Process::start(Program::fairmesh(world.path("watch.log"), &watch));
        until("it is captured", async || rules().await.contains("tproxy")).await;

        let mut passing = talking(behind.connect(format!("{THERE}:80").parse().unwrap()));
        passing.write_all(b"x").await.unwrap();
        // Echoes repeatedly until capture has ended, and a while longer.
        let script = format!(
            "import os, socket, time; s = socket.create_connection(('{THERE}', 80)); s.settimeout(20)\n\
             end = time.time() + 60\n\
             while time.time() < end:\n  \
             s.sendall(b'.'); assert s.recv(1) == b'.'; time.sleep(0.05)\n  \
             if os.path.exists('{}'): end = min(end, time.time() + 0.5)\n\
             print('heard to the end')",
            world.path("paused").display()
        );
        let own = programs.python(&script);
        let stop = async {
            proxy.counts("captured_connections_passthrough_total", 2.0).await;
            proxy.process.signal(Signal::TERM);
            until("nothing is captured", async || !rules().await.contains("tproxy")).await;
            for _ in 0..3 {
                passing.write_all(b"y").await.unwrap();
                timeout(PATIENCE, passing.read_exact(&mut [0])).await.unwrap().unwrap();
            }
            fs::write(world.path("paused"), "").unwrap();
        };
        let (heard, ()) = tokio::join!(own, stop);
        assert_eq!(heard, "heard to the end\n");
        watch.signal(Signal::TERM);
        assert!(watch.end().await.success());
        assert_eq!((rules().await, routes().await), before);
    });
}

fn talking(stream: std::net::TcpStream) -> TcpStream {
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

/// Policy routing rules and local routes of the machine.
async fn routes() -> String {
    let mut all = String::new();
    for family in ["-4", "-6"] {
        for of in ["rule", "route show table all type local"] {
            let mut command = Command::new("/usr/bin/env");
            command.arg(format!("PATH={}", path())).arg("ip").arg(family).args(of.split(' '));
            let told = run(command, "", PATIENCE).await.ok();
            // Link-local addresses appear by themselves, somewhat later.
            for line in told.lines().filter(|line| !line.contains("fe80:")) {
                all += &format!("IPv{}: {line}\n", &family[1..]);
            }
        }
    }
    all
}
