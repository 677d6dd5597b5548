//! A service whose endpoints are picked by a lookaside of its own.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use fairmesh_client::{Mesh, ServiceHandle};
use fairmesh_model::Protocol;
use fairmesh_wire::lookaside::v1::{
    Lease, PickRequest, PickResponse, ReportRequest, ReportResponse,
    lookaside_server::{Lookaside, LookasideServer},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use crate::harness::{Caller, Kind, Proxy, Spec, World, beside_others, free_port, until};

/// A lookaside that returns one endpoint to every client, and records the requests.
#[derive(Clone)]
struct Chooser {
    chosen: Arc<Mutex<(&'static str, SocketAddr)>>,
    asked: Arc<Mutex<Vec<PickRequest>>>,
}

impl Chooser {
    fn start(&self, at: &str) -> JoinHandle<()> {
        let (this, at) = (self.clone(), at.to_owned());
        tokio::spawn(async move {
            let listener = TcpListener::bind(at).await.unwrap();
            let server = tonic::transport::Server::builder().add_service(LookasideServer::new(this));
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        })
    }

    fn choose(&self, name: &'static str, address: SocketAddr) {
        *self.chosen.lock().unwrap() = (name, address);
    }
}

#[tonic::async_trait]
impl Lookaside for Chooser {
    async fn pick(&self, request: Request<PickRequest>) -> Result<Response<PickResponse>, Status> {
        let request = request.into_inner();
        let (name, address) = *self.chosen.lock().unwrap();
        let response = PickResponse {
            service: request.service.clone(),
            leases: vec![Lease {
                id: 1,
                instance: name.into(),
                address: address.to_string(),
                ..Lease::default()
            }],
            ttl_ms: 200,
            calls: 1000,
            first_key: Bytes::from_static(&[0; 16]),
            last_key: Bytes::from_static(&[255; 16]),
            ..PickResponse::default()
        };
        self.asked.lock().unwrap().push(request);
        Ok(Response::new(response))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Ok(Response::new(ReportResponse::default()))
    }
}

async fn answers(handle: &ServiceHandle) -> String {
    Caller::new(handle, Kind::Get).call(0).await.unwrap()
}

/// Instance that serves a call through a proxy.
async fn behind(proxy: &Proxy) -> String {
    let url = format!("http://{}/", proxy.for_one);
    let output = tokio::process::Command::new("curl")
        .args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%header{x-instance}", &url])
        .output()
        .await
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_follow_lookaside_named_in_policy_and_survive_its_loss() {
    let _machine = beside_others().await;
    let at = format!("127.0.0.1:{}", free_port());
    let policy = format!("{{kind: Policy, service: shop/one, lookaside: '{at}', timeout: 9s}}");
    let world = World::start(&format!("{{kind: Service, name: shop/one}}\n---\n{policy}")).await;
    let first = Spec::new("shop/one", "first", Protocol::Http1).here(&world).await;
    let second = Spec::new("shop/one", "second", Protocol::Http1).here(&world).await;
    for name in ["first", "second"] {
        world.serves("shop/one", name).await;
    }
    let chosen = Arc::new(Mutex::new(("second", second.address)));
    let chooser = Chooser { chosen, asked: Arc::default() };
    let serving = chooser.start(&at);
    until("it listens", async || tokio::net::TcpStream::connect(&at).await.is_ok()).await;

    let (mesh, proxy) = (world.mesh().await, Proxy::start(&world).await);
    let one = mesh.service("shop/one").unwrap();
    for _ in 0..30 {
        assert_eq!((answers(&one).await, behind(&proxy).await), ("second".into(), "second".into()));
    }
    assert_eq!(answers(&one.clone().key(618)).await, "second");
    let key = Bytes::copy_from_slice(&618_u128.to_be_bytes());
    let asked = chooser.asked.lock().unwrap().clone();
    assert!(asked.iter().any(|request| request.key == key), "{asked:?}");
    assert!(asked.iter().all(|request| request.service == "shop/one"), "{asked:?}");

    chooser.choose("first", first.address);
    until("callers have turned", async || answers(&one).await == "first").await;
    until("and the proxy's", async || behind(&proxy).await == "first").await;

    // Callers with leases continue with them, the others with the records.
    serving.abort();
    let _ = serving.await;
    for _ in 0..30 {
        assert_eq!((answers(&one).await, behind(&proxy).await), ("first".into(), "first".into()));
    }
    let late: Mesh = world.mesh().await;
    let other = late.service("shop/one").unwrap();
    until("the records know both", async || answers(&other).await == "second").await;
    until("the records know both", async || answers(&other).await == "first").await;
    assert!(late.stats().lookaside_fallbacks >= 2, "{:?}", late.stats());
    assert_eq!(mesh.stats().lookaside_fallbacks, 0);

    chooser.choose("second", second.address);
    let serving = chooser.start(&at);
    until("who had leases gets new ones", async || answers(&one).await == "second").await;
    // The client no longer calls a lookaside once the policy names none.
    world.apply("{kind: Policy, service: shop/one}").await.ok();
    until("the records count again", async || answers(&one).await == "first").await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_lookaside_address_in_policy_is_refused() {
    let _machine = beside_others().await;
    let world = World::start("{kind: Service, name: shop/one}").await;
    let refused = world.apply("{kind: Policy, service: shop/one, lookaside: picks}").await;
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.err.contains("'picks' is not an address") && refused.err.contains("host:port"),
        "{refused:?}"
    );
}
