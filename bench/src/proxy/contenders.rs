//! Fairmesh and its peers, configured alike: one worker thread, two endpoints, one prefix route, least request, a
//! deadline, and the statistics that each proxy has. Two yardsticks have only the endpoints.

use std::{
    fmt, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::process::Process;

/// A proxy to measure, or a yardstick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Fairmesh,
    Envoy,
    Haproxy,
    Nginx,
    /// No proxy: the system's cost of forwarding bytes.
    Relay,
    /// A proxy made only of hyper.
    HyperProxy,
}

/// The peers.
pub(super) const PEERS: [Contender; 3] = [Contender::Envoy, Contender::Haproxy, Contender::Nginx];
/// Yardsticks for the CPU of HTTP/1.1. They are not for production.
pub(super) const YARDSTICKS: [Contender; 2] = [Contender::HyperProxy, Contender::Relay];

/// Protocol on both sides of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireProtocol {
    Http1,
    Http2,
    Grpc,
}

/// A running proxy.
pub(super) struct Proxy {
    pub(super) process: Process,
    pub(super) address: SocketAddr,
    /// An auxiliary process that is not measured.
    beside: Option<Process>,
}

impl Proxy {
    /// Stops the proxy and its auxiliary process.
    pub(super) async fn stop(self) -> Result<(), String> {
        self.process.stop().await?;
        match self.beside {
            Some(beside) => beside.stop().await,
            None => Ok(()),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fairmesh => "fairmesh",
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Relay => "relay",
            Self::HyperProxy => "hyper-proxy",
        })
    }
}

impl fmt::Display for WireProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
        })
    }
}

impl Contender {
    /// Path of the contender's program; `ours` is that of Fairmesh.
    fn program(self, ours: &Path) -> Result<PathBuf, String> {
        match self {
            Self::Fairmesh => return Ok(ours.to_owned()),
            Self::Relay | Self::HyperProxy => return std::env::current_exe().map_err(|e| e.to_string()),
            Self::Envoy | Self::Haproxy | Self::Nginx => {}
        }
        let name = self.to_string();
        on_path(&name).ok_or_else(|| format!("{name} is not on the path; run scripts/setup.sh peers"))
    }

    /// Version of the contender's program, as it prints it.
    pub(super) fn version(self, ours: &Path) -> Result<String, String> {
        let flag = if matches!(self, Self::Haproxy | Self::Nginx) { "-v" } else { "--version" };
        version(&self.program(ours)?, flag)
    }

    /// Starts the proxy in front of these endpoints, and waits until it forwards requests; `ours` is the Fairmesh
    /// program.
    pub(super) async fn start(
        self,
        (dir, ours): (&Path, &Path),
        spoken: WireProtocol,
        endpoints: [SocketAddr; 2],
    ) -> Result<Proxy, String> {
        let dir = dir.join(format!("{self}-{spoken}"));
        fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let [address, grpc, http, admin] = free()?;
        let program = self.program(ours)?;
        let (args, beside) = match self {
            Self::Fairmesh => {
                let listen = [address, grpc, http, admin].map(|address| address.to_string());
                fairmesh(&dir, &program, spoken, listen, endpoints).await?
            }
            Self::Envoy => (envoy(&dir, spoken, address, endpoints)?, None),
            Self::Haproxy => (haproxy(&dir, address, endpoints)?, None),
            Self::Nginx => (nginx(&dir, address, endpoints)?, None),
            Self::Relay | Self::HyperProxy => (part(self, address, endpoints), None),
        };
        let mut process = Process::pinned(&dir, &self.to_string(), &program, &args)?;
        let said = process.ready(async || passes_on(address).await.unwrap_or(false)).await;
        said.map_err(|why| format!("{self} {why}"))?;
        Ok(Proxy { process, address, beside })
    }
}

/// Path of a program found by `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|place| place.is_file())
}

/// Version text that a program prints for `flag`.
pub(crate) fn version(program: &Path, flag: &str) -> Result<String, String> {
    let said = Command::new(program).arg(flag).output().map_err(|e| format!("{}: {e}", program.display()))?;
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok(said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned())
}

/// Distinct free addresses: each is held open until all are found.
fn free() -> Result<[SocketAddr; 4], String> {
    let bound = [(); 4].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut free = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); 4];
    for (address, listener) in free.iter_mut().zip(&bound) {
        let found = listener.as_ref().ok().and_then(|listener| listener.local_addr().ok());
        *address = found.ok_or("there is no free port")?;
    }
    Ok(free)
}

/// Writes a file, and returns its path.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> Result<String, String> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path.display().to_string())
}

/// Whether an endpoint responds to an HTTP/1.1 request through the proxy; every proxy here serves HTTP/1.1.
pub(crate) async fn passes_on(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"POST /echo HTTP/1.1\r\nhost: bench\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        .await?;
    let mut answer = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer == *b"HTTP/1.1 200")
}

fn part(who: Contender, address: SocketAddr, [a, b]: [SocketAddr; 2]) -> Vec<String> {
    ["role", &who.to_string(), "--listen", &address.to_string(), "--to", &format!("{a},{b}")]
        .map(str::to_owned)
        .to_vec()
}

async fn fairmesh(
    dir: &Path,
    program: &Path,
    spoken: WireProtocol,
    [address, grpc, http, admin]: [String; 4],
    [a, b]: [SocketAddr; 2],
) -> Result<(Vec<String>, Option<Process>), String> {
    let endpoints = format!(
        "kind: Endpoints\nservice: bench/{spoken}\nendpoints:\n  - {{instance: a, address: {a}, region: bench}}\n  - \
         {{instance: b, address: {b}, region: bench}}\n"
    );
    let policy = format!(
        "kind: Service\nname: bench/{spoken}\nprotocol: {spoken}\n---\nkind: Policy\nservice: bench/{spoken}\nroutes:\n  - name: \
         all\n    match: {{path: {{prefix: /}}}}\nbalancing: {{policy: leastRequest}}\ntimeout: 15s\n"
    );
    let source = write(dir, "endpoints.yaml", &endpoints)?;
    let policy = write(dir, "policy.yaml", &policy)?;
    let mut control = Command::new(program);
    control.args([
        "control",
        "--trust-domain",
        "none",
        "--grpc",
        &grpc,
        "--admin",
        &http,
        "--source",
        &source,
    ]);
    control.arg("--data-dir").arg(dir.join("control"));
    let mut control = Process::start(dir, "control", control)?;
    let apply = || Command::new(program).args(["apply", "-f", &policy, "--control", &grpc]).output();
    let applied = async || apply().is_ok_and(|done| done.status.success());
    control.ready(applied).await.map_err(|why| format!("the control plane {why}"))?;
    let listen = format!("{address}=bench/{spoken}");
    let args = [
        "proxy",
        "--listen",
        &listen,
        "--admin",
        &admin,
        "--control",
        &grpc,
        "--region",
        "bench",
        "--client-id",
        "bench",
    ];
    Ok((args.map(str::to_owned).to_vec(), Some(control)))
}

fn envoy(
    dir: &Path,
    spoken: WireProtocol,
    address: SocketAddr,
    endpoints: [SocketAddr; 2],
) -> Result<Vec<String>, String> {
    let listeners = address.port();
    let [a, b] = endpoints.map(|at| {
        format!(
            "{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}",
            at.port()
        )
    });
    let http2 = match spoken {
        WireProtocol::Http1 => "",
        WireProtocol::Http2 | WireProtocol::Grpc => {
            "\n    typed_extension_protocol_options:\n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
             '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
             explicit_http_config: {http2_protocol_options: {}}"
        }
    };
    let config = format!(
        "static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {listeners}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - {{name: bench, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: bench, timeout: 15s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: bench
    type: STATIC
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST{http2}
    load_assignment: {{cluster_name: bench, endpoints: [{{lb_endpoints: [{a}, {b}]}}]}}
"
    );
    let config = write(dir, "envoy.yaml", &config)?;
    let args = ["-c", &config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"];
    Ok(args.map(str::to_owned).to_vec())
}

fn haproxy(dir: &Path, address: SocketAddr, [a, b]: [SocketAddr; 2]) -> Result<Vec<String>, String> {
    let config = format!(
        "global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 2s
    timeout client 75s
    timeout http-request 75s
    timeout server 15s
frontend bench
    bind {address}
    use_backend bench if {{ path_beg / }}
backend bench
    balance leastconn
    http-reuse always
    server a {a}
    server b {b}
"
    );
    Ok(vec!["-f".into(), write(dir, "haproxy.cfg", &config)?, "-db".into()])
}

fn nginx(dir: &Path, address: SocketAddr, [a, b]: [SocketAddr; 2]) -> Result<Vec<String>, String> {
    let here = dir.display();
    // Buffers hold whole bodies. Otherwise nginx writes bodies to files.
    let config = format!(
        "daemon off;
worker_processes 1;
pid {here}/pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {here}; proxy_temp_path {here}; fastcgi_temp_path {here}; uwsgi_temp_path {here}; scgi_temp_path {here};
    client_body_buffer_size 128k;
    proxy_buffers 16 8k;
    upstream bench {{ least_conn; server {a}; server {b}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://bench; proxy_http_version 1.1; proxy_set_header Connection '';
            proxy_connect_timeout 2s; proxy_read_timeout 15s;
        }}
        location = /statistics {{ stub_status; }}
    }}
}}
"
    );
    Ok(vec!["-p".into(), here.to_string(), "-c".into(), write(dir, "nginx.conf", &config)?])
}
