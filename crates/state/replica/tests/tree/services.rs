//! Tests that calls of agents reach the control plane through replicas.

use fairmesh_control::{Control, ControlConfig};
use fairmesh_wire::{transport::Address, v1};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    MOMENT,
    processes::Processes,
    support::{BOUND, Reader},
};

/// A real control plane.
struct Root {
    address: Address,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Root {
    async fn start(processes: &Processes) -> Self {
        let address = processes.socket("control");
        let config = ControlConfig {
            transport: Default::default(),
            trust_domain: Default::default(),
            data_dir: processes.state("control"),
            grpc: vec![address.clone()],
            http: Some(([127, 0, 0, 1], 0).into()),
            traces: None,
            http_names: Vec::new(),
            http_certificate: None,
            sources: Vec::new(),
            proxies: Vec::new(),
            shadow_controllers: Vec::new(),
            gateway_launcher: None,
            etcd: None,
            oidc: None,
        };
        let control = Control::start(config).await.unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move { control.run(stopped).await.unwrap() });
        Self { address, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.unwrap().unwrap();
    }
}

fn registration(instance: &str) -> v1::RegisterRequest {
    let location = v1::Location { region: "eu".into(), ..v1::Location::default() };
    let endpoint = v1::Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:9000".into(),
        location: Some(location),
        weight: 1000,
        ..v1::Endpoint::default()
    };
    let service = v1::Service::default();
    let registration = v1::Registration {
        service: "shop/cart".into(),
        endpoint: Some(endpoint),
        declaration: Some(service),
    };
    v1::RegisterRequest { registrations: vec![registration] }
}

fn cart(instance: &str) -> v1::InstanceRef {
    v1::InstanceRef { service: "shop/cart".into(), instance: instance.into(), incarnation: 0 }
}

#[tokio::test]
async fn registration_and_drain_work_below_two_replicas() {
    let processes = Processes::new();
    let control = Root::start(&processes).await;
    let root = processes.replica("root", std::slice::from_ref(&control.address)).await;
    let region = processes.replica("region", std::slice::from_ref(&root.address)).await;
    let agent = processes.agent("agent", &region.address);
    // The registration succeeded, so all processes are connected.
    let mut caller = Reader::following(&[&agent.address], &["/t/shop/endpoints/cart/"]).await;
    let program = agent.connect().await;
    program.registry().register(registration("cart-0")).await.unwrap();
    while caller.copy.is_empty() {
        let update = caller.update().await;
        caller.handle.ack(update.revision);
    }

    let drain = v1::DrainRequest { instances: vec![cart("cart-0")], deadline_ms: 15_000, by_operator: false };
    let mut registry = program.registry();
    let mut draining = tokio::spawn(async move { registry.drain(drain).await });
    let update = caller.update().await;
    assert!(timeout(MOMENT, &mut draining).await.is_err(), "the caller has not applied it");
    caller.handle.ack(update.revision);
    let drained = timeout(BOUND, draining).await.unwrap().unwrap().unwrap().into_inner();
    assert!(drained.callers_moved, "{:?}", drained.behind);
    agent.stop().await;
    region.stop().await;
    root.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn replica_forwards_elections_and_usage_reports() {
    let processes = Processes::new();
    let control = Root::start(&processes).await;
    let replica = processes.replica("replica", std::slice::from_ref(&control.address)).await;
    let connection = replica.connect().await;
    let connected = async { while replica.page("/readyz").await.lines().last() != Some("ready") {} };
    timeout(BOUND, connected).await.unwrap();

    let apply = |name: &str| v1::CampaignRequest { region: "eu".into(), name: name.into() };
    let mut first = connection.checker().campaign(apply("first")).await.unwrap().into_inner();
    let leadership = timeout(BOUND, first.message()).await.unwrap().unwrap().unwrap();
    let mut checker = connection.checker();
    let mut second =
        tokio::spawn(
            async move { checker.campaign(apply("second")).await.unwrap().into_inner().message().await },
        );
    assert!(timeout(MOMENT, &mut second).await.is_err(), "there is one leader at a time");
    drop(first);
    let next = timeout(BOUND, second).await.unwrap().unwrap().unwrap().unwrap();
    assert!(next.term > leadership.term, "{next:?} after {leadership:?}");
    let judged = v1::JudgeRequest { region: "eu".into(), term: leadership.term, judgements: Vec::new() };
    let refused = connection.checker().judge(judged).await.unwrap_err();
    assert_ne!(refused.code(), Code::Unimplemented, "the control plane's response: {refused}");

    let read = v1::ReadImbalanceRequest::default();
    connection.imbalance().read(read).await.unwrap();
    replica.stop().await;
    control.stop().await;
}
