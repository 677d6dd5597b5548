//! Replicas with a CPU quota report their load; a service whose calls grow gets a further backend. Operators throttle and move services.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fairmesh_test_support::{Process, Program, eventually_async as until, free_port, skipped};
use rustix::process::Pid;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::mesh::{Mesh, Options, serve_pod};

/// A tenth of a core per replica, which a few calls with one handshake each use up, even beside other tests.
const QUOTA_US: u32 = 10_000;
const PERIOD_US: u32 = 100_000;
/// Address of the calling pod; all of 127.0.0.0/8 is on loopback.
const POD: &str = "127.0.1.7";
/// Backends in the home zone, with one replica each.
const BACKENDS: [&str; 3] = ["a1", "a2", "a3"];
/// Backends of the other zone, without running replicas. A service gets at most half of all backends.
const ELSEWHERE: [&str; 5] = ["b1", "b2", "b3", "b4", "b5"];
/// Number of callers. Each sends its next call once it has a response, which on a busy machine takes four processes'
/// turns: so many callers use up the quotas also if each of them waits for 100 ms.
const CALLERS: usize = 16;
/// Longest time from the alert to the effect of an addition.
const RELIEF: Duration = Duration::from_secs(20);
/// Time limit of connections that a lossy move ends: the figure of the issue.
const MOVED: Duration = Duration::from_secs(10);
/// Time limit of one call, which waits while its replica has used up its CPU.
const CALL: Duration = Duration::from_secs(30);

/// Number of cgroups that this process has made: tests may run beside each other in one process.
static QUOTAS: AtomicU64 = AtomicU64::new(0);

/// A cgroup with a CPU quota, removed on drop.
pub(crate) struct Quota(PathBuf);

impl Quota {
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let number = QUOTAS.fetch_add(1, Relaxed);
        let name = format!("fairmesh-gateway-{}-{number}-{name}", std::process::id());
        let root = PathBuf::from("/sys/fs/cgroup");
        if root.join("cgroup.controllers").exists() {
            fs::write(root.join("cgroup.subtree_control"), "+cpu")?;
            let folder = root.join(name);
            fs::create_dir(&folder)?;
            fs::write(folder.join("cpu.max"), format!("{QUOTA_US} {PERIOD_US}"))?;
            return Ok(Self(folder));
        }
        let folder = root.join("cpu").join(name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(folder.join("cpu.cfs_quota_us"), QUOTA_US.to_string())?;
        Ok(Self(folder))
    }

    pub(crate) fn take(&self, process: Pid) {
        fs::write(self.0.join("cgroup.procs"), process.as_raw_nonzero().to_string()).unwrap();
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // The process in the cgroup was killed, but may not have exited yet.
        let removed = (0..500).any(|_| {
            fs::remove_dir(&self.0).is_ok() || {
                thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(removed || thread::panicking(), "{} is left", self.0.display());
    }
}

/// A gateway with backends. Fields drop in order: each cgroup after its process.
pub(crate) struct Fleet {
    _node: Process,
    /// The replicas of the backends in the home zone, with their backends.
    pub(crate) replicas: Vec<(&'static str, Process)>,
    _quotas: Vec<Quota>,
    pub(crate) virtual_address: SocketAddr,
    pub(crate) mesh: Mesh,
}

impl Fleet {
    async fn start() -> Option<Self> {
        Self::start_with(&BACKENDS, Options::default()).await
    }

    /// Starts backends in the home zone; one whose name begins with `sandbox` is a sandbox.
    pub(crate) async fn start_with(names: &[&'static str], options: Options) -> Option<Self> {
        let mesh = Mesh::start_with(serve_pod().await, options).await?;
        let quotas = names.iter().map(|name| Quota::new(name)).collect::<io::Result<Vec<_>>>();
        let quotas = match quotas {
            Ok(quotas) => quotas,
            Err(error) => {
                skipped("a replica cannot get a CPU quota", error.to_string());
                return None;
            }
        };
        let at = |ip: [u8; 4]| SocketAddr::from((ip, free_port()));
        let virtual_address = at([127, 0, 0, 9]);
        let addresses: Vec<SocketAddr> = names.iter().map(|_| at([127, 0, 0, 1])).collect();
        let mut records = format!(
            "{{kind: Service, name: red/web, virtualAddress: '{virtual_address}'}}\n---\n{{kind: GatewayService, service: red/web, homeZone: a}}\n"
        );
        let home = names.iter().zip(&addresses).map(|(name, address)| (name, "a", *address));
        let elsewhere = ELSEWHERE.iter().map(|name| (name, "b", at([127, 0, 0, 1])));
        for (name, zone, address) in home.chain(elsewhere) {
            let is_sandbox = name.starts_with("sandbox");
            records += &format!(
                "---\n{{kind: GatewayBackend, name: {name}, zone: {zone}, replicas: ['{address}'], sandbox: {is_sandbox}}}\n"
            );
        }
        mesh.cli(&["apply", "-f", "-"], &records).await.ok();
        let replicas = names.iter().zip(&addresses).zip(&quotas).map(|((name, address), quota)| {
            let process = start_replica(&mesh, name, *address);
            quota.take(process.pid());
            (*name, process)
        });
        let replicas = replicas.collect();
        // A node avoids a replica that refused a connection for some seconds: it starts after they accept.
        until("all replicas report", async || {
            let status = mesh.cli(&["gateway", "status", "--json"], "").await.json();
            let loads = status.as_array().unwrap().iter().map(|one| &one["load"]);
            let reporting = loads.filter(|load| load["replicas"] == 1 && load["limitCores"] == 0.1);
            reporting.count() == names.len()
        })
        .await;
        let args = format!(
            "node --agent {} --gateway {} --capture 0.0.0.0:{} --admin none --pod red/client={POD}",
            mesh.agent_of("red"),
            addresses[0],
            virtual_address.port()
        );
        let node = Process::start(Program::fairmesh(mesh.path("caller.log"), &args));
        let this = Self { _node: node, replicas, _quotas: quotas, virtual_address, mesh };
        until("red reaches its web", async || call(this.virtual_address).await).await;
        Some(this)
    }

    /// Runs `fairmesh gateway`.
    pub(crate) async fn gateway(&self, arguments: &[&str]) -> String {
        self.mesh.cli(&[&["gateway"][..], arguments].concat(), "").await.ok()
    }

    pub(crate) async fn status(&self) -> Value {
        self.mesh.cli(&["gateway", "status", "--json"], "").await.json()
    }

    /// Number of backends in the home zone, and of backends added.
    pub(crate) async fn placement(&self) -> (usize, u64) {
        let listed = self.mesh.cli(&["get", "gateway-services", "red/web", "-o", "json"], "").await.json();
        let placement = &listed[0]["placement"];
        let home = placement["zones"]["a"].as_array().map_or(0, Vec::len);
        (home, placement["added"].as_u64().unwrap_or_default())
    }
}

/// Starts the replica of a backend.
pub(crate) fn start_replica(mesh: &Mesh, backend: &str, address: SocketAddr) -> Process {
    let agent = mesh.agent_of("edge");
    let args =
        format!("gateway --agent {agent} --listen {address} --admin none --cores 1 --backend {backend}");
    Process::start(Program::fairmesh(mesh.path(&format!("{backend}.log")), &args))
}

/// Callers that call one after the other.
pub(crate) struct Callers {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Callers {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let (stop, failed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let caller = |_| {
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    if !call(to).await {
                        failed.fetch_add(1, Relaxed);
                    }
                }
            })
        };
        let callers = (0..CALLERS).map(caller).collect();
        Self { stop, failed, callers }
    }

    /// Ends the calls. Returns how many have failed.
    pub(crate) async fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        self.failed.load(Relaxed)
    }
}

/// Calls red/web through the node as the pod; true if red/web responded.
pub(crate) async fn call(destination: SocketAddr) -> bool {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{POD}:0").parse().unwrap()).unwrap();
    let called = async {
        let mut stream = socket.connect(destination).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answered = timeout(CALL, called).await;
    answered.is_ok_and(|answer| answer.is_ok_and(|answer| answer.contains("red/web for")))
}

pub(crate) fn alert_of(status: &Value) -> Option<&Value> {
    let loads = status.as_array().into_iter().flatten().map(|backend| &backend["load"]["alert"]);
    loads.into_iter().find(|alert| !alert.is_null())
}

#[test]
fn quotas_with_the_same_name_are_apart() {
    match [Quota::new("same"), Quota::new("same")] {
        [Ok(first), Ok(second)] => assert_ne!(first.0, second.0),
        [Err(error), Err(_)] => skipped("a replica cannot get a CPU quota", error.to_string()),
        one => panic!("{:?}", one.map(|quota| quota.map(|quota| quota.0.clone()))),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_service_gets_another_backend_and_loses_no_call() {
    let Some(fleet) = Fleet::start().await else { return };
    assert_eq!(fleet.placement().await, (2, 0));
    let callers = Callers::start(fleet.virtual_address);
    until("a backend has an alert", async || alert_of(&fleet.status().await).is_some()).await;
    let alerted = Instant::now();
    until("red/web has a further backend", async || fleet.placement().await == (3, 1)).await;
    let took = alerted.elapsed();
    assert!(took <= RELIEF, "{took:?}");
    let explained = fleet.mesh.cli(&["gateway", "explain", "red/web"], "").await.ok();
    for backend in ["a1: CPU", "a2: CPU", "a3: CPU", "calls of red/web have grown"] {
        assert!(explained.contains(backend), "{backend}: {explained}");
    }
    until("the further backend gets calls", async || {
        let status = fleet.status().await;
        let loads = status.as_array().unwrap().iter().map(|one| &one["load"]);
        let serving = loads.filter(|load| {
            load["services"].as_array().is_some_and(|all| {
                all.iter()
                    .any(|one| one["service"] == "red/web" && one["requestsPerSecond"].as_f64() > Some(0.1))
            })
        });
        serving.count() >= 3
    })
    .await;
    assert_eq!(callers.stop().await, 0, "failed calls");
    until("the alert ends", async || alert_of(&fleet.status().await).is_none()).await;
    drop(fleet.replicas);
}

/// A connection of the pod that stays open.
async fn open(destination: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{POD}:0").parse().unwrap()).unwrap();
    socket.connect(destination).await.unwrap()
}

/// Calls on an open connection; whether red/web responded, and the connection stays open.
async fn call_again(stream: &mut TcpStream) -> bool {
    let called = async {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n").await?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
            if text.contains("red/web for") {
                return Ok::<_, io::Error>(!text.contains("connection: close"));
            }
            match stream.read(&mut buffer).await? {
                0 => return Ok(false),
                read => answer.extend_from_slice(&buffer[..read]),
            }
        }
    };
    timeout(CALL, called).await.is_ok_and(|answered| answered.unwrap_or(false))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttled_service_gets_few_new_connections_and_keeps_open_ones() {
    let Some(fleet) = Fleet::start().await else { return };
    let mut stays = open(fleet.virtual_address).await;
    assert!(call_again(&mut stays).await);
    fleet.gateway(&["throttle", "red/web", "--connections", "1", "--reason", "a test"]).await;
    // One that is refused closes without a response.
    until("connections are refused", async || !call(fleet.virtual_address).await).await;
    let explained = fleet.gateway(&["explain", "red/web"]).await;
    assert!(explained.contains("an operator limits it to 1 new connections a second"), "{explained}");
    assert!(call_again(&mut stays).await, "open connections stay");
    until("one a second is accepted", async || call(fleet.virtual_address).await).await;
    fleet.gateway(&["throttle", "red/web", "--off"]).await;
    until("the limit is over", async || {
        let mut accepted = true;
        for _ in 0..6 {
            accepted &= call(fleet.virtual_address).await;
        }
        accepted
    })
    .await;
    drop(fleet.replicas);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn move_leaves_open_connections_unless_they_have_to_end_now() {
    let Some(fleet) = Fleet::start().await else { return };
    // Connections on both backends at home; the service moves from one of them to the third.
    let mut connections = Vec::new();
    for _ in 0..6 {
        connections.push(open(fleet.virtual_address).await);
    }
    for stream in &mut connections {
        assert!(call_again(stream).await);
    }
    let listed = fleet.mesh.cli(&["get", "gateway-services", "red/web", "-o", "json"], "").await.json();
    let placed = |zone: &str| {
        let names = listed[0]["placement"]["zones"][zone].as_array().into_iter().flatten();
        names.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (home, elsewhere) = (placed("a"), placed("b"));
    let third = BACKENDS.into_iter().find(|name| !home.iter().any(|one| one == name)).unwrap();
    let to = format!("{},{third},{}", home[0], elsewhere[0]);
    fleet.gateway(&["move", "red/web", "--to", &to]).await;
    for stream in &mut connections {
        assert!(call_again(stream).await, "a lossless move leaves connections where they are");
    }
    fleet.gateway(&["move", "red/web", "--to", &to, "--now"]).await;
    let (mut closed, deadline) = (0, Instant::now() + MOVED);
    for stream in &mut connections {
        let mut byte = [0; 1];
        match timeout_at(deadline, stream.read(&mut byte)).await {
            Ok(end) => closed += usize::from(matches!(end, Ok(0) | Err(_))),
            Err(_) => assert!(call_again(stream).await, "connections at its other backend stay"),
        }
    }
    assert!((1..connections.len()).contains(&closed), "{closed}");
    assert!(call(fleet.virtual_address).await);
    drop(fleet.replicas);
}
