//! Programs in other languages and reverse proxies, as callers and as servers on the same machine.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::process::Command;

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, run_in},
};
use crate::harness::{World, beside_others, free_port, run, skipped, tool, until};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/kernel/programs");
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of calls per path.
const ROUNDS: usize = 10;
const LANGUAGES: [&str; 4] = ["python3", "node", "go", "java"];
const PROXIES: [&str; 2] = ["nginx", "haproxy"];
/// Paths that the Python server serves, and paths that every other server serves.
const PATHS: [&str; 6] = ["plain-7", "split-9", "chunked-5", "plain-60000", "plain-70000", "load-3"];
const SERVED: [&str; 4] = ["plain-7", "plain-300", "plain-60000", "plain-70000"];
/// Paths that reverse proxies answer by themselves.
const SMALL: [&str; 2] = ["plain-7", "plain-300"];

/// Path of a system program; `None`, with a message, if it is missing.
fn found(name: &str) -> Option<PathBuf> {
    let elsewhere = || Some(Path::new("/usr/sbin").join(name)).filter(|path| path.is_file());
    let found = tool(name).or_else(elsewhere);
    if found.is_none() {
        skipped(&format!("{name} calls through the kernel, and serves"), format!("{name} is missing"));
    }
    found
}

fn source(name: &str) -> String {
    format!("{PROGRAMS}/{name}")
}

/// Command of a caller in this language, with a virtual address; `None`, with a message, if the language is missing.
async fn caller(language: &str, address: IpAddr, folder: &Path) -> Option<Vec<String>> {
    fs::write(folder.join("hosts"), format!("{address} raw.shop\n")).unwrap();
    let mut command = program(language, "caller", folder).await?;
    let written = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    match language {
        "python3" => command.extend([written, "raw.shop".into(), "20".into()]),
        "go" => command.push(format!("{written}:80")),
        "node" => command.push(address.to_string()),
        _ => {}
    }
    Some(command)
}

/// Command of the `caller` or `server` in this language; `None`, with a message, if the language is missing.
async fn program(language: &str, role: &str, folder: &Path) -> Option<Vec<String>> {
    let name = found(if language == "java" { "javac" } else { language })?.display().to_string();
    Some(match language {
        // By name only, since programs run without an environment.
        "python3" => vec![language.into(), source("caller.py")],
        "node" => vec![name, source(&format!("{role}.js"))],
        "go" => {
            let made = folder.join(role).display().to_string();
            let build = ["build", "-o", &made, &source(&format!("{role}.go"))];
            // With the environment, which locates earlier build output.
            assert!(Command::new(name).args(build).status().await.unwrap().success());
            vec![made]
        }
        _ => {
            let hosts = folder.join("hosts");
            let class = if role == "caller" { "Caller.java" } else { "Server.java" };
            let quick =
                ["-XX:TieredStopAtLevel=1".to_owned(), format!("-Djdk.net.hosts.file={}", hosts.display())];
            let java = Path::new(&name).with_file_name("java").display().to_string();
            [&[java], &quick[..], &[source(class)]].concat()
        }
    })
}

/// Expected response body of a path, for a request without a body.
fn text(path: &str) -> String {
    format!("{path}:{}", "x".repeat(path.rsplit('-').next().unwrap().parse().unwrap()))
}

/// Arguments of a reverse proxy that listens at this port and either answers the small paths or forwards to a virtual
/// address.
fn arguments(proxy: &str, port: u16, serves: bool, folder: &Path) -> Vec<String> {
    let (option, content) = match proxy {
        "nginx" => ("-c", nginx(port, serves, folder)),
        _ => ("-f", haproxy(port, serves)),
    };
    let file = folder.join(format!("{proxy}.conf"));
    fs::write(&file, content).unwrap();
    vec![option.to_owned(), file.display().to_string()]
}

fn nginx(port: u16, serves: bool, folder: &Path) -> String {
    let folder = folder.display();
    let answers = SMALL.map(|path| format!("location = /{path} {{ return 200 '{}'; }}\n", text(path)));
    let calls = "location / {\n proxy_pass http://services; proxy_http_version 1.1;\n\
         proxy_set_header connection ''; proxy_set_header host raw.shop;\n}\n";
    let locations = if serves { answers.concat() } else { calls.to_owned() };
    let temporary = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).concat();
    // A single process, which the test can kill; workers would outlive a killed master.
    format!(
        "user root; daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}upstream services {{ server 127.96.0.1:80; keepalive 4; }}\n\
         server {{\nlisten {port};\n{locations}}}\n}}\n"
    )
}

fn haproxy(port: u16, serves: bool) -> String {
    let answer = |path: &str| {
        let text = text(path);
        format!(
            " http-request return status 200 content-type text/plain string \"{text}\" if {{ path /{path} }}\n"
        )
    };
    let calls =
        " http-reuse always\n http-request set-header host raw.shop\n server services 127.96.0.1:80\n";
    let rules = if serves { SMALL.map(answer).concat() } else { calls.to_owned() };
    format!(
        "defaults\n mode http\n timeout client 30s\n timeout server 30s\n timeout connect 5s\n\
         listen own\n bind :{port}\n{rules}"
    )
}

/// Runs a program's calls and asserts its output; returns the numbers of requests sent and responses moved by the
/// kernel.
async fn called(attached: &Attached, name: &str, calls: usize, call: impl AsyncFn() -> String) -> [u64; 2] {
    let counters = ["sent-by-kernel", "answered-directly"];
    let before = [attached.counter(counters[0]).await, attached.counter(counters[1]).await];
    assert_eq!(call().await.trim(), format!("right {calls}"), "{name}");
    [attached.counter(counters[0]).await - before[0], attached.counter(counters[1]).await - before[1]]
}

/// Calls from programs in each language to a virtual address.
async fn languages_call(attached: &Attached, address: &str) {
    let (folder, calls) = (TempDir::new().unwrap(), ROUNDS * PATHS.len());
    for language in LANGUAGES {
        let address = address.parse().unwrap();
        let Some(program) = caller(language, address, folder.path()).await else { continue };
        let command: Vec<_> = program.iter().map(String::as_str).chain(PATHS).collect();
        let call = async || attached.run_for(&command, PATIENCE).await.ok();
        let [sent, direct] = called(attached, language, calls, call).await;
        // Python sends bodies apart from heads. Half of the requests have no body, and half of their responses are
        // plain.
        assert!(
            sent as usize >= calls / 2 - 5 && direct as usize >= calls / 8,
            "{language}: {sent}, {direct}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_other_languages_call_through_kernel_over_ipv6() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the server is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("callers6").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--to", "::1", "--servers", &server.cgroup]).await;
    languages_call(&attached, "::1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_other_languages_and_proxies_call_through_kernel() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the server is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("callers").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    languages_call(&attached, "127.96.0.1").await;
    let (folder, calls) = (TempDir::new().unwrap(), ROUNDS * PATHS.len());
    for proxy in PROXIES {
        let (Some(path), port) = (found(proxy), free_port()) else { continue };
        let options = arguments(proxy, port, false, folder.path());
        let command = [vec![path.display().to_string()], options].concat();
        let _process = run_in(&attached.cgroup, &command, port).await;
        let (address, caller) = (format!("127.0.0.1:{port}"), source("caller.py"));
        let call = async || {
            let mut client = Command::new("python3");
            client.args([&[caller.as_str(), &address, "raw.shop", "20"][..], &PATHS].concat());
            run(client, "", PATIENCE).await.ok()
        };
        let [sent, direct] = called(&attached, proxy, calls, call).await;
        let by_kernel = sent as usize >= calls / 2 - 5 && direct as usize >= calls / 8;
        // nginx queries the readable length and is therefore left to the sidecar.
        assert!(if proxy == "nginx" { sent == 0 } else { by_kernel }, "{proxy}: {sent}, {direct}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_other_languages_and_proxies_serve_local_callers() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("servers").await else { return };
    let world = World::start("").await;
    let (folder, mut servers) = (TempDir::new().unwrap(), Vec::new());
    for name in LANGUAGES[1..].iter().chain(&PROXIES) {
        let is_proxy = PROXIES.contains(name);
        let begin = if is_proxy {
            found(name).map(|path| vec![path.display().to_string()])
        } else {
            program(name, "server", folder.path()).await
        };
        let Some(begin) = begin else { continue };
        let own = |port: u16| {
            if is_proxy { arguments(name, port, true, folder.path()) } else { vec![port.to_string()] }
        };
        let command = |port| [begin, own(port)].concat();
        servers
            .push((*name, LocalServer::running(&world, &attached, &format!("shop/{name}"), command).await));
    }
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &format!("{}-servers", attached.cgroup)]).await;

    for (name, _server) in &servers {
        let (host, caller) = (format!("{name}.shop"), source("caller.py"));
        // Reverse proxies do not echo the body.
        let (growth, paths) = if PROXIES.contains(name) { ("0", &SMALL[..]) } else { ("20", &SERVED[..]) };
        let command = [&["python3", &caller, "127.96.0.1", &host, growth][..], paths].concat();
        let mut sent = 0;
        let call = async || attached.run(&command).await.ok();
        until(&format!("the kernel sends to {name}, and its responses"), async || {
            let [requests, responses] = called(&attached, name, ROUNDS * paths.len(), call).await;
            sent = requests;
            // Java sends heads and bodies apart, Go sends large bodies in parts, and nginx queries the readable length.
            ["java", "nginx"].contains(name) || responses >= ROUNDS as u64 / 2
        })
        .await;
        assert!(sent as usize >= ROUNDS * paths.len() / 2 - 5, "{name}: {sent}");
    }
}
