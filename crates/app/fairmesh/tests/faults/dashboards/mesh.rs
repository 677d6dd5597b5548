//! A small mesh with a few calls, whose processes are all scraped.

use std::{fs, time::Duration};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_test_support::{fairmesh, run};
use http::{Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::task::JoinSet;

use crate::{
    harness::{Authority, Local, Process, Program, Spec, free_port, until},
    limits::Fleet,
    telemetry::{page, start_register},
};

/// Agents report the calls of the planned service.
const RECORDS: &str = "\
{kind: Topology, regions: [{name: eu}, {name: us}], roundTrips: [{between: [eu, us], rtt: 20ms}]}
---
{kind: Service, name: shop/lost}
---
{kind: Policy, service: shop/one, traffic: {planner: rings, load: {metric: busy, fullScale: 100}}}
";

const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct SmallMesh {
    pub(super) fleet: Fleet,
    /// Address for calls by host, and address of the proxy's pages.
    proxy: String,
    /// Addresses of the pages of all processes.
    pub(super) pages: Vec<String>,
    /// `register` for `shop/leaving`; its lease ends 10 s after the process.
    pub(super) leaving: Process,
    _servers: [Local; 2],
    _processes: [Process; 4],
    calls: JoinSet<()>,
}

impl SmallMesh {
    /// Starts the mesh, waits until all services respond, and starts continuous HTTP and gRPC calls.
    pub(super) async fn start() -> Self {
        let fleet = Fleet::start(None).await;
        let agent = || format!("unix:{}", fleet.agent_socket().display()).parse().unwrap();
        let serve = |service, protocol| Spec::new(service, "first", protocol);
        let one = serve("shop/one", Protocol::Http1).serve(agent()).await;
        let grpc = serve("shop/grpc", Protocol::Http2).serve(agent()).await;
        let apply = fairmesh(&["apply", "-f", "-", "--control", &fleet.control_grpc]);
        run(apply, RECORDS, Duration::from_secs(30)).await.ok();
        let (key_server, keys_http) = fleet.start_key_server().await;
        let (register, register_http) = start_register(&fleet).await;
        let (proxy_process, [proxy, proxy_http]) = start_proxy(&fleet, &one);
        let (tls_proxy, tls_proxy_http) = start_tls_proxy(&fleet);
        let leaving = start_leaving(&fleet, &one);
        let pages = [&fleet.control_http, &fleet.replica_http, &fleet.agent_http, &fleet.lookaside_http];
        let mut pages: Vec<_> = pages.into_iter().cloned().collect();
        pages.extend([keys_http, register_http, proxy_http, tls_proxy_http]);
        let mut mesh = Self {
            fleet,
            proxy,
            pages,
            leaving,
            _servers: [one, grpc],
            _processes: [key_server, register, proxy_process, tls_proxy],
            calls: JoinSet::new(),
        };
        for (host, content_type) in
            [("one.shop", "text/plain"), ("front.shop", "text/plain"), ("grpc.shop", "application/grpc")]
        {
            // Calls that fail before the proxy knows the service are not measured.
            let serves = async || call(&mesh.proxy, host, content_type).await == Some(200);
            until(&format!("{host} serves"), serves).await;
            mesh.call_forever(host, content_type);
        }
        let is_registered = async || call(&mesh.proxy, "leaving.shop", "text/plain").await == Some(200);
        until("shop/leaving serves", is_registered).await;
        mesh
    }

    /// Calls a service in a loop.
    pub(super) fn call_forever(&mut self, host: &'static str, content_type: &'static str) {
        let proxy = self.proxy.clone();
        self.calls.spawn(async move {
            loop {
                call(&proxy, host, content_type).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    /// Metrics pages of all processes, in the Prometheus text format.
    pub(super) async fn metrics(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for address in &self.pages {
            texts.push(String::from_utf8(page(address).await.unwrap().to_vec()).unwrap());
        }
        texts
    }
}

/// A proxy with all optional series, which also serves `one` as `shop/front`. Returns the address for calls and the
/// address of its pages.
fn start_proxy(fleet: &Fleet, one: &Local) -> (Process, [String; 2]) {
    let [calls, front, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let arguments = format!(
        "proxy --agent unix:{} --region eu --listen {calls} --inbound shop/front@{front}={} --inbound-adaptive --admin {admin} \
         --metrics-per-endpoint --access-log json --trace-to http://127.0.0.1:9 --client-id proxy",
        fleet.agent_socket().display(),
        one.address,
    );
    (Process::start(Program::fairmesh(fleet.path("proxy.log"), &arguments)), [calls, admin])
}

/// `register` in front of `one`.
fn start_leaving(fleet: &Fleet, one: &Local) -> Process {
    let arguments = format!(
        "register shop/leaving --agent unix:{} --address 127.0.0.1:{} --program {}",
        fleet.agent_socket().display(),
        free_port(),
        one.address
    );
    Process::start(Program::fairmesh(fleet.path("leaving.log"), &arguments))
}

/// A proxy whose key server does not exist, and the address of its pages. It assumes a strict mesh, in which it calls
/// no endpoint here.
fn start_tls_proxy(fleet: &Fleet) -> (Process, String) {
    let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let folder = fleet.path("tls-proxy");
    fs::create_dir(&folder).unwrap();
    let authority = Authority::new(&folder);
    authority.issue("proxy", "ec");
    let arguments = format!(
        "proxy --agent unix:{} --listen {listen}+tls --tls-cert {} --tls-key {} --tls-key-server edge@127.0.0.1:9 \
         --admin {admin} --client-id tls-proxy",
        fleet.agent_socket().display(),
        authority.path("proxy.pem"),
        authority.path("proxy.key"),
    );
    (Process::start(Program::fairmesh(fleet.path("tls-proxy.log"), &arguments)), admin)
}

/// Status of a call; `None` without a response.
pub(super) async fn call(proxy: &str, host: &str, content_type: &str) -> Option<u16> {
    let client =
        Client::builder(TokioExecutor::new()).http2_only(content_type.ends_with("grpc")).build_http();
    let request = Request::post(format!("http://{proxy}/shop.v1.Shop/Add"))
        .header("host", host)
        .header(CONTENT_TYPE, content_type)
        .body(Full::new(Bytes::from_static(b"\0\0\0\0\0")));
    let answer = client.request(request.unwrap()).await.ok()?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.ok()?;
    Some(status)
}
