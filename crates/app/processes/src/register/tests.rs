//! Tests with a real control plane and a real child. The test itself listens at the child's address.

use std::{ffi::OsString, fs::File, net::SocketAddr, path::Path, time::Duration};

use clap::Parser;
use fairmesh_console::failure::Failure;
use fairmesh_control::{Control, ControlConfig};
use fairmesh_model::{Endpoint, EndpointState};
use fairmesh_test_support::eventually_async;
use fairmesh_wire::{handshake, transport::Address, v1};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::timeout};

use super::{
    Child, FIRST_PROBE_INTERVAL, Front, ObserverConfig, RegisterArgs, RegisterPages, RequestObserver,
    ServerTransport, Supervisor, ValidArguments, next_interval,
};

/// Time limit of every wait.
const BOUND: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: RegisterArgs,
}

struct Bench {
    control: Address,
    folder: TempDir,
    _running: JoinHandle<()>,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ControlConfig {
            transport: Default::default(),
            trust_domain: Default::default(),
            data_dir: folder.path().join("control"),
            etcd: None,
            oidc: None,
            grpc: vec!["127.0.0.1:0".parse().unwrap()],
            http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            traces: None,
            http_names: Vec::new(),
            http_certificate: None,
            sources: Vec::new(),
            proxies: Vec::new(),
            shadow_controllers: Vec::new(),
            gateway_launcher: None,
        };
        let control = Control::start(config).await.unwrap();
        let address = control.grpc_addresses().unwrap().remove(0);
        let running = tokio::spawn(async move { control.run(std::future::pending()).await.unwrap() });
        Self { control: address, folder, _running: running }
    }

    /// Registers the listener on `address`, with a child that ends with exit code 3 once the file `end` exists.
    fn register(&self, address: SocketAddr) -> (oneshot::Sender<()>, JoinHandle<Result<u8, Failure>>) {
        let child = format!("while [ ! -e '{}' ]; do sleep 0.05; done; exit 3", self.end().display());
        let typed = format!(
            "register shop/recommend --address {address} --region eu --interval 20ms --grace 10ms --control {} --",
            self.control
        );
        let typed = typed.split(' ').map(OsString::from);
        let typed = typed.chain(["sh", "-c", &child].map(OsString::from));
        let mut plan = ValidArguments::new(CommandLine::try_parse_from(typed).unwrap().args).unwrap();
        let child = Child::start(&plan.command).unwrap();
        let (terminate, terminated) = oneshot::channel();
        let pages = RegisterPages::new(RequestObserver::start(ObserverConfig::default()));
        let run = async move {
            let front = Front::open(&mut plan, ServerTransport::default(), pages).await.unwrap();
            Supervisor::new(plan, front, child).run(async { drop(terminated.await) }).await
        };
        (terminate, tokio::spawn(run))
    }

    fn end(&self) -> Box<Path> {
        self.folder.path().join("end").into()
    }

    /// The endpoints of the service, as routers read them.
    async fn endpoints(&self) -> Vec<Endpoint> {
        let connection = handshake::connect(&Default::default(), &self.control, "test").await.unwrap();
        let prefixes = vec!["/t/shop/endpoints/recommend/".to_owned()];
        let read = connection.rib().read(v1::ReadRequest { prefixes, at_least: None }).await.unwrap();
        let values = read.into_inner().entries.into_iter().map(|entry| entry.value);
        values
            .map(|value| <v1::Endpoint as prost::Message>::decode(value).unwrap().try_into().unwrap())
            .collect()
    }

    async fn until(&self, states: &[EndpointState]) {
        eventually_async(&format!("endpoints are {states:?}"), async || {
            self.endpoints().await.iter().map(|endpoint| endpoint.state).eq(states.iter().copied())
        })
        .await;
    }
}

#[tokio::test]
async fn register_waits_for_callers_before_stopping_program() {
    let bench = Bench::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (terminate, ended) = bench.register(address);
    bench.until(&[EndpointState::Serving]).await;
    assert_eq!(bench.endpoints().await[0].address, address);
    drop(listener);
    bench.until(&[EndpointState::Lost]).await;
    let _listener = TcpListener::bind(address).await.unwrap();
    bench.until(&[EndpointState::Serving]).await;
    terminate.send(()).unwrap();
    let code = timeout(BOUND, ended).await.unwrap().unwrap().unwrap();
    assert_eq!(code, 0, "it was ended by SIGTERM");
    bench.until(&[]).await;
}

#[tokio::test]
async fn exited_program_is_deregistered_and_its_exit_code_returned() {
    let bench = Bench::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_terminate, ended) = bench.register(listener.local_addr().unwrap());
    bench.until(&[EndpointState::Serving]).await;
    File::create(bench.end()).unwrap();
    assert_eq!(timeout(BOUND, ended).await.unwrap().unwrap().unwrap(), 3);
    bench.until(&[]).await;
}

#[test]
fn startup_probe_interval_grows_up_to_configured_interval() {
    let interval = Duration::from_secs(2);
    let pauses =
        std::iter::successors(Some(FIRST_PROBE_INTERVAL), |pause| Some(next_interval(*pause, interval)));
    let pauses: Vec<_> = pauses.take_while(|pause| *pause < interval).collect();
    assert!(pauses.is_sorted() && pauses.len() < 20, "{pauses:?}");
    assert!(pauses.iter().take(4).sum::<Duration>() < Duration::from_millis(500), "{pauses:?}");
    assert_eq!(next_interval(interval, interval), interval);
}

#[test]
fn invalid_register_arguments_are_refused_with_hint() {
    let typed = |rest: &str| {
        format!("register shop/recommend {rest}").split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    for wrong in
        ["--address 127.0.0.1", "--address 127.0.0.1:1 --protocol spdy", "--address 127.0.0.1:1 --label x"]
    {
        assert!(CommandLine::try_parse_from(typed(wrong)).is_err(), "{wrong}");
    }
    for wrong in
        ["--address 0.0.0.0:80", "--address 127.0.0.1:80 --weight 0", "--address 127.0.0.1:80 --interval 0s"]
    {
        let args = CommandLine::try_parse_from(typed(wrong)).unwrap().args;
        assert!(ValidArguments::new(args).is_err(), "{wrong}");
    }
}
