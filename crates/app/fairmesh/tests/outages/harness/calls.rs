use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{Body, Mesh, ServiceHandle};
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::{Host, network::Runtime, until};

/// Name of the called service.
const SERVICE: &str = "shop/front";
/// Numbers of servers and callers per region.
const SERVERS: usize = 2;
const CALLERS: usize = 2;
/// Pause of a caller between two calls.
const PAUSE: Duration = Duration::from_millis(10);

/// Programs of one region: servers with leases, and callers that count failures.
pub(crate) struct Programs {
    tally: Arc<Tally>,
    _runtime: Runtime,
}

#[derive(Debug, Default)]
struct Tally {
    servers: AtomicU64,
    calls: AtomicU64,
    failures: Mutex<Vec<String>>,
    /// Pairs of revisions where the caller's table moved to a lower revision.
    backwards: Mutex<Vec<(u64, u64)>>,
}

impl Programs {
    /// Starts the programs on a host with the agent of that host.
    pub(crate) fn start(region: &str, host: &Host, agent: &Address, nowhere: &Path) -> Self {
        let (runtime, tally) = (host.runtime(), Arc::new(Tally::default()));
        for number in 0..SERVERS {
            let (instance, agent) = (format!("{region}-{number}"), agent.clone());
            runtime.handle.spawn(serve(instance, host.clone(), agent, tally.clone()));
        }
        until("the servers are registered", || tally.servers.load(Relaxed) == SERVERS as u64);
        for number in 0..CALLERS {
            let builder = Mesh::builder().agent(agent.clone()).client_id(format!("{region}-caller-{number}"));
            let builder = builder.cache_dir(nowhere.to_owned());
            let tally = tally.clone();
            runtime.handle.spawn(async move {
                let mesh = builder.connect().await.unwrap();
                let service = mesh.service(SERVICE).unwrap();
                service.prepare().await.unwrap();
                tally.run(&service).await;
            });
        }
        Self { tally, _runtime: runtime }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.tally.calls.load(Relaxed)
    }

    /// Asserts that no call failed and no caller's table moved to a lower revision.
    #[track_caller]
    pub(crate) fn are_unharmed(&self) {
        let failures = self.tally.failures.lock().unwrap();
        let first: Vec<_> = failures.iter().take(5).collect();
        assert!(
            failures.is_empty(),
            "{} of {} calls failed; the first: {first:#?}",
            failures.len(),
            self.calls()
        );
        let backwards = self.tally.backwards.lock().unwrap();
        assert!(backwards.is_empty(), "a router went back in revision: {backwards:?}");
    }
}

async fn serve(instance: String, host: Host, agent: Address, tally: Arc<Tally>) {
    let listener = TcpListener::bind((host.address, 0)).await.unwrap();
    let server = MeshServer::builder(SERVICE)
        .instance(instance)
        .address(listener.local_addr().unwrap())
        .protocol(Protocol::Http1)
        .agent(agent)
        .start();
    let server = server.await.unwrap();
    tally.servers.fetch_add(1, Relaxed);
    let answer =
        tower::service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(String::new())));
    serve_http(listener, answer, &server).await.unwrap();
}

impl Tally {
    async fn run(&self, service: &ServiceHandle) {
        let mut last = 0;
        loop {
            if let Err(failure) = call(service).await {
                self.failures.lock().unwrap().push(failure);
            }
            self.calls.fetch_add(1, Relaxed);
            if let ServiceState::Ready(ready) = &*service_state(service) {
                if ready.revision < last {
                    self.backwards.lock().unwrap().push((last, ready.revision));
                }
                last = ready.revision;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn call(service: &ServiceHandle) -> Result<(), String> {
    let request = Request::get("/").body(Body::empty()).unwrap();
    let answer = service.send(request).await.map_err(|fault| fault.to_string())?;
    let (head, body) = answer.into_parts();
    body.collect().await.map_err(|fault| fault.to_string())?;
    if head.status == 200 { Ok(()) } else { Err(format!("{head:?}")) }
}
