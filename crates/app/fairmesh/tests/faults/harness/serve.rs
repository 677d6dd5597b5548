use std::{convert::Infallible, env, net::SocketAddr, time::Duration};

use fairmesh_model::Protocol;
use fairmesh_server::{Drained, MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{Process, Program, World, free_port};

/// Environment variable that makes this test program run as a server.
const ROLE: &str = "FAULTS_SERVER";

/// Header of a call with the number of CPU-burning steps.
pub(crate) const BURN: &str = "x-burn";

/// Configuration of one server, built with the library.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) service: String,
    pub(crate) instance: String,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) lease: Duration,
    /// Duration of each response.
    pub(crate) work: Duration,
    /// Whether the server receives its shards.
    pub(crate) sharded: bool,
}

/// A server in this process.
pub(crate) struct Local {
    pub(crate) server: MeshServer,
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Spec {
    pub(crate) fn new(service: &str, instance: &str, protocol: Protocol) -> Self {
        Self {
            service: service.into(),
            instance: instance.into(),
            protocol,
            port: 0,
            lease: Duration::from_secs(10),
            work: Duration::ZERO,
            sharded: false,
        }
    }

    /// Starts the server in this process; returns once it is registered.
    pub(crate) async fn here(&self, world: &World) -> Local {
        self.serve(world.agent_address()).await
    }

    /// Starts the server in a separate process; returns once it is registered.
    pub(crate) async fn apart(self, world: &World) -> Process {
        self.apart_as(world, |program| program).await.0
    }

    /// Like [`apart`](Self::apart), with a custom command; also returns the port.
    pub(crate) async fn apart_as(
        mut self,
        world: &World,
        another: impl FnOnce(Program) -> Program,
    ) -> (Process, u16) {
        self.port = free_port();
        let log = world.path(&format!("{}.log", self.instance));
        let args = ["--exact", "harness::serve::a_server", "--ignored", "--nocapture"].map(Into::into).into();
        let env = vec![(ROLE, self.text(&world.agent_address()))];
        let program = Program { binary: env::current_exe().unwrap(), args, env, log };
        let process = Process::start(another(program));
        world.serves(&self.service, &self.instance).await;
        (process, self.port)
    }

    /// Starts the server in this process, registered at `agent`.
    pub(crate) async fn serve(&self, agent: Address) -> Local {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut builder = MeshServer::builder(&self.service)
            .instance(&self.instance)
            .address(address)
            .protocol(self.protocol)
            .lease(self.lease)
            .agent(agent);
        if self.sharded {
            builder = builder.on_shard_start(|_, _| async { Ok(()) });
        }
        let server = builder.start().await.unwrap();
        let (name, work) = (HeaderValue::from_str(&self.instance).unwrap(), self.work);
        let service =
            tower::service_fn(move |request: Request<Incoming>| answer(request, name.clone(), work));
        let serving = tokio::spawn({
            let server = server.clone();
            async move { serve_http(listener, service, &server).await.unwrap() }
        });
        Local { server, address, serving }
    }

    /// Text form that [`Spec::read`] parses.
    fn text(&self, agent: &Address) -> String {
        let Self { service, instance, port, lease, work, .. } = self;
        let protocol = match self.protocol {
            Protocol::Http1 => "http1",
            _ => "http2",
        };
        format!("{service} {instance} {protocol} {port} {} {} {agent}", lease.as_millis(), work.as_millis())
    }

    fn read(text: &str) -> (Self, Address) {
        let words: Vec<_> = text.split(' ').collect();
        let millis = |word: &str| Duration::from_millis(word.parse().unwrap());
        let protocol = if words[2] == "http1" { Protocol::Http1 } else { Protocol::Http2 };
        let spec = Self {
            port: words[3].parse().unwrap(),
            lease: millis(words[4]),
            work: millis(words[5]),
            ..Self::new(words[0], words[1], protocol)
        };
        (spec, words[6].parse().unwrap())
    }
}

impl Local {
    /// Stops the server as planned; returns when its last connection is closed.
    pub(crate) async fn stop(self) -> Drained {
        let drained = self.server.shutdown().await;
        self.serving.await.unwrap();
        drained
    }
}

/// Responds with the server's name, and to a gRPC call with status OK.
async fn answer(
    request: Request<Incoming>,
    name: HeaderValue,
    work: Duration,
) -> Result<Response<String>, Infallible> {
    let kind = request.headers().get(http::header::CONTENT_TYPE).cloned();
    let context = request.headers().get("traceparent").cloned();
    let burn = request.headers().get(BURN).and_then(|steps| steps.to_str().ok()?.parse().ok());
    let _ = request.into_body().collect().await;
    tokio::time::sleep(work).await;
    std::hint::black_box(burnt(burn.unwrap_or(0)));
    let mut answer = Response::new(String::new());
    answer.headers_mut().insert("x-instance", name);
    // Echoes the trace context, for tests that check it.
    answer.headers_mut().extend(context.map(|context| (HeaderName::from_static("x-traceparent"), context)));
    if let Some(kind) = kind.filter(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        answer.headers_mut().insert(http::header::CONTENT_TYPE, kind);
        answer.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
    }
    Ok(answer)
}

/// Burns CPU for a number of steps; the work does not depend on the machine's load.
fn burnt(steps: u64) -> u64 {
    (0..steps).fold(1, |word, step| std::hint::black_box(word.wrapping_mul(6_364_136_223_846_793_005) ^ step))
}

#[tokio::test]
#[ignore = "not a test: the other tests start it as a server process"]
async fn a_server() {
    let Ok(text) = env::var(ROLE) else { return };
    let (spec, agent) = Spec::read(&text);
    let Local { serving, .. } = spec.serve(agent).await;
    serving.await.unwrap();
}
