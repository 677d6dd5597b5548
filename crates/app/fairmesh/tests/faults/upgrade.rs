//! A proxy is replaced while programs call through it, and starts without records or with an agent's saved copy.

mod systemd;

use std::{
    convert::Infallible,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode, header::CONNECTION};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixDatagram},
    task::JoinHandle,
    time::timeout,
};

use crate::harness::{
    Connection, Manner, PATIENCE, Process, Program, Proxy, RawServer, Spec, World, beside_others, free_port,
    h2, until,
};

/// Addresses on which the successive proxies of one test listen.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) listen: String,
    pub(crate) by_host: String,
    admin: String,
    agent: String,
    folder: PathBuf,
}

impl Place {
    pub(crate) fn new(world: &World) -> Self {
        let [listen, by_host, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        Self { listen, by_host, admin, agent: world.agent_address().to_string(), folder: world.path("") }
    }

    pub(crate) fn proxy(&self, name: &str, more: &str) -> Process {
        Process::start(self.program(name, more))
    }

    fn program(&self, name: &str, more: &str) -> Program {
        let socket = self.folder.join("proxy.sock");
        let args = format!("proxy --handover {} {}", socket.display(), self.options(more));
        let mut program = Program::fairmesh(self.folder.join(format!("{name}.log")), &args);
        program.env.push(("XDG_STATE_HOME", self.folder.join("state").display().to_string()));
        program
    }

    /// Options of the proxy, without those of the upgrade.
    fn options(&self, more: &str) -> String {
        let Self { listen, by_host, admin, agent, .. } = self;
        format!(
            "--agent {agent} --listen {listen}=shop/one --listen {by_host} --admin {admin} --client-id proxy{more}"
        )
    }

    async fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.admin).await else { return false };
        let asked =
            stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n\r\n").await;
        let mut answer = String::new();
        asked.is_ok()
            && stream.read_to_string(&mut answer).await.is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    pub(crate) async fn ready(&self) {
        until("the proxy is ready", async || self.is_ready().await).await;
    }
}

/// Callers that never retry; each call without a response counts as failed.
struct Callers {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Callers {
    fn start(to: &str) -> Self {
        let mut callers = Self {
            stop: Arc::default(),
            answered: Arc::default(),
            failures: Arc::default(),
            tasks: Vec::new(),
        };
        for manner in [Manner::Fresh, Manner::Kept, Manner::Kept, Manner::Kept, Manner::Http2, Manner::Http2]
        {
            let (stop, answered, failures) =
                (Arc::clone(&callers.stop), Arc::clone(&callers.answered), Arc::clone(&callers.failures));
            let to = to.to_owned();
            callers.tasks.push(tokio::spawn(async move {
                let mut connection = None;
                while !stop.load(Relaxed) {
                    match call(&to, manner, &mut connection).await {
                        Ok(()) => drop(answered.fetch_add(1, Relaxed)),
                        Err(what) => failures.lock().unwrap().push(format!("{manner:?}: {what}")),
                    }
                }
            }));
        }
        callers
    }

    async fn go_on(&self, calls: u64) {
        let goal = self.answered.load(Relaxed) + calls;
        until("calls go on", async || self.answered.load(Relaxed) >= goal).await;
    }

    async fn stop_unharmed(self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        let failures = self.failures.lock().unwrap();
        let first: Vec<_> = failures.iter().take(5).collect();
        let answered = self.answered.load(Relaxed);
        assert!(failures.is_empty(), "{} failed, {answered} did not; the first: {first:#?}", failures.len());
    }
}

fn post(to: &str) -> Request<Full<Bytes>> {
    Request::post(format!("http://{to}/add")).header("host", "one.shop").body(Full::default()).unwrap()
}

async fn call(to: &str, manner: Manner, kept: &mut Option<Connection>) -> Result<(), String> {
    let (answer, _) = Connection::call(kept, (to, manner), || post(to)).await?;
    match answer.status() {
        StatusCode::OK => Ok(()),
        _ => Err(format!("{answer:?}")),
    }
}

fn threads(process: &Process) -> usize {
    let tasks = format!("/proc/{}/task", process.pid().as_raw_nonzero());
    std::fs::read_dir(tasks).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successive_proxy_upgrades_fail_no_connection_and_no_request() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let mut running = place.proxy("proxy-0", "");
    place.ready().await;
    let callers = Callers::start(&place.listen);
    callers.go_on(200).await;
    for upgrade in 1..=3 {
        // With several event loops, and with a single one that also does all other work.
        let cores = if upgrade == 2 { 1 } else { 2 };
        let next = place.proxy(&format!("proxy-{upgrade}"), &format!(" --cores {cores}"));
        let ended = running.end().await;
        assert!(ended.success(), "{ended}: {}", running.log());
        assert!(place.is_ready().await, "the successor is ready: {}", next.log());
        callers.go_on(200).await;
        if cores == 1 {
            until("it has no other thread", async || threads(&next) == 1).await;
        }
        running = next;
    }
    callers.stop_unharmed().await;
    running.signal(Signal::TERM);
    assert!(running.end().await.success());
    assert!(TcpStream::connect(&place.listen).await.is_err(), "no process holds the listener any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_upgrade_leaves_running_proxy_unchanged() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let mut running = place.proxy("runs", "");
    place.ready().await;
    let callers = Callers::start(&place.listen);
    callers.go_on(50).await;

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut refused = place.proxy("refused", &format!(" --listen {}", taken.local_addr().unwrap()));
    assert!(!refused.end().await.success(), "an address of its own is taken");
    assert!(refused.log().contains("cannot listen on"), "{}", refused.log());

    let lost = Place { agent: world.path("nobody.sock").display().to_string(), ..place.clone() };
    let lost = Place { agent: format!("unix:{}", lost.agent), ..lost };
    let mut uninformed = lost.proxy("uninformed", "");
    let seen = |words: &str| running.log().matches(words).count();
    until("it asks for the listeners", async || seen("about to take over") == 2).await;
    callers.go_on(50).await;
    uninformed.kill().await;
    until("its end is noticed", async || seen("this proxy continues") == 2).await;
    callers.go_on(50).await;
    assert!(running.has_ended().is_none() && place.is_ready().await);

    let next = place.proxy("next", "");
    assert!(running.end().await.success(), "{}", running.log());
    callers.go_on(50).await;
    callers.stop_unharmed().await;
    drop(next);
}

/// Next message to the supervisor.
async fn heard(supervisor: &UnixDatagram) -> String {
    let mut words = [0; 4096];
    let length = timeout(PATIENCE, supervisor.recv(&mut words)).await.expect("nothing was said").unwrap();
    String::from_utf8(words[..length].to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_notifies_supervisor_of_readiness_status_and_successor() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let path = world.path("supervisor.sock");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    let supervised = |name| {
        let mut program = place.program(name, "");
        program.env.push(("NOTIFY_SOCKET", path.display().to_string()));
        Process::start(program)
    };
    let mut first = supervised("first");
    assert_eq!(heard(&supervisor).await, "READY=1\nSTATUS=waiting for routing information\n");
    assert_eq!(heard(&supervisor).await, "READY=1\nSTATUS=serving\n");

    let mut second = supervised("second");
    // The supervisor accepts the successor only after the predecessor has named it.
    assert_eq!(heard(&supervisor).await, format!("MAINPID={}\n", second.pid()));
    assert_eq!(heard(&supervisor).await, "READY=1\nSTATUS=serving\n");
    assert!(first.end().await.success(), "{}", first.log());

    second.signal(Signal::TERM);
    assert_eq!(heard(&supervisor).await, "STOPPING=1\nSTATUS=draining\n");
    assert!(second.end().await.success(), "{}", second.log());
    assert!(supervisor.try_recv(&mut [0; 64]).is_err(), "the first has said more than its successor's name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_proxy_closes_idle_connection_with_its_next_response() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let mut proxy = place.proxy("proxy", "");
    place.ready().await;
    let mut idle = Connection::open(&place.listen, Manner::Kept).await.unwrap();
    let (answer, _) = idle.send(post(&place.listen)).await.unwrap().unwrap();
    assert!(!answer.headers().contains_key(CONNECTION));
    let mut told = Connection::open(&place.listen, Manner::Http2).await.unwrap();
    assert_eq!(told.send(post(&place.listen)).await.unwrap().unwrap().0.status(), StatusCode::OK);

    proxy.signal(Signal::TERM);
    until("no new connection is accepted", async || TcpStream::connect(&place.listen).await.is_err()).await;
    let (answer, _) = idle.send(post(&place.listen)).await.unwrap().unwrap();
    assert_eq!((answer.status(), &answer.headers()[CONNECTION]), (StatusCode::OK, &"close".parse().unwrap()));
    let is_told = async || match &mut told {
        Connection::Http2(sender) => sender.is_closed(),
        Connection::Http1(_) => false,
    };
    until("HTTP/2 is told to go", is_told).await;
    assert!(proxy.end().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_long_stream_is_told_to_reconnect_before_drain_ends() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let builder = MeshServer::builder("shop/one").protocol(Protocol::Grpc).agent(world.agent_address());
    let server = builder.address(listener.local_addr().unwrap()).start().await.unwrap();
    // One message, then silence.
    let endless = tower::service_fn(async |_: Request<hyper::body::Incoming>| {
        let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\0\0\0\0\0")))]);
        let body = StreamBody::new(first.chain(stream::pending()));
        Ok::<_, Infallible>(
            Response::builder().header("content-type", "application/grpc").body(body).unwrap(),
        )
    });
    let serving = tokio::spawn(async move { serve_http(listener, endless, &server).await });
    let place = Place::new(&world);
    let mut proxy = place.proxy("proxy", " --cores 1 --drain-deadline 2s");
    place.ready().await;

    let Connection::Http2(mut caller) = Connection::open(&place.listen, Manner::Http2).await.unwrap() else {
        unreachable!("as it was asked for");
    };
    let request = Request::post(format!("http://{}/shop.v1.Shop/Watch", place.listen));
    let request = request.header("content-type", "application/grpc").body(Full::default()).unwrap();
    let mut body = caller.send_request(request).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    proxy.signal(Signal::TERM);
    let last = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(last["grpc-status"], "14", "{last:?}");
    assert!(body.frame().await.is_none());
    assert!(proxy.end().await.success());
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_contains_requests_cut_at_drain_deadline() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let mut proxy = Proxy::with(&world, "--cores 1 --drain-deadline 1s").await;
    let mut old = TcpStream::connect(&proxy.for_one).await.unwrap();
    old.write_all(b"GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n").await.unwrap();
    let mut new = h2::connect(&proxy.for_one, &[]).await;
    let get = h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 1, &h2::get("one.shop"));
    new.write_all(&get).await.unwrap();
    // Both requests are in flight, and no server ever responds.
    let served = [server.accept().await, server.accept().await];
    proxy.process.signal(Signal::TERM);
    assert!(proxy.process.end().await.success());
    let log = proxy.process.log();
    assert!(log.contains("connections=2") && log.contains("--drain-deadline"), "{log}");
    drop(served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_without_records_is_not_ready_and_accepts_no_connection() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    world.agent.kill().await;
    let place = Place::new(&world);
    let proxy = place.proxy("proxy", "");
    until("its pages are there", async || TcpStream::connect(&place.admin).await.is_ok()).await;
    let calls = [&place.listen, &place.by_host].map(|to| {
        let to = to.clone();
        tokio::spawn(async move { call(&to, Manner::Fresh, &mut None).await })
    });
    until("it logs that no agent responds", async || proxy.log().contains("agent.sock")).await;
    assert!(!place.is_ready().await, "{}", proxy.log());
    assert!(!proxy.log().contains("listening"), "{}", proxy.log());
    assert!(calls.iter().all(|call| !call.is_finished()), "an empty table was served");

    world.agent.restart();
    place.ready().await;
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misconfigured_proxy_is_replaced_by_correct_one_on_upgrade() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let wrong = format!("unix:{}", world.path("nobody.sock").display());
    let mut waits = Place { agent: wrong, ..place.clone() }.proxy("waits", "");
    until("its pages are there", async || TcpStream::connect(&place.admin).await.is_ok()).await;
    let waiting = tokio::spawn({
        let to = place.listen.clone();
        async move { call(&to, Manner::Fresh, &mut None).await }
    });
    let _next = place.proxy("next", "");
    assert!(waits.end().await.success(), "{}", waits.log());
    waiting.await.unwrap().unwrap();
    place.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_without_agent_serves_from_saved_copy() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let one = world.mesh().await.service("shop/one").unwrap();
    until("the agent has heard of it", async || one.prepare().await.is_ok()).await;
    world.is_saved("shop/one", 0).await;
    world.agent.kill().await;
    world.control.kill().await;
    // Default folder for the copy of this user's agent.
    std::fs::create_dir_all(world.path("state/fairmesh")).unwrap();
    symlink(world.path("agent-state"), world.path("state/fairmesh/agent")).unwrap();
    let place = Place::new(&world);
    let _proxy = place.proxy("proxy", " --cores 1");
    place.ready().await;
    call(&place.listen, Manner::Fresh, &mut None).await.unwrap();
}
