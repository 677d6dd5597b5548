//! Reports through a replica to a control plane of the previous release, which has no `Signals` service.

use std::sync::{Arc, Mutex};

use fairmesh_wire::v1::{
    self,
    imbalance_server::{Imbalance, ImbalanceServer},
};
use tokio::time::timeout;
use tonic::{Request, Response, Status, service::Routes};

use crate::{
    processes::Processes,
    support::{BOUND, Memory, Server},
};

/// A control plane of the previous release. It records the reports that it receives.
#[derive(Clone, Default)]
struct FormerControlPlane(Arc<Mutex<Vec<v1::ReportUsageRequest>>>);

#[tonic::async_trait]
impl Imbalance for FormerControlPlane {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(v1::ReportUsageResponse { dropped: 7, ..Default::default() }))
    }

    async fn read(
        &self,
        _: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

#[tokio::test]
async fn replica_forwards_usage_minutes_to_previous_release_control_plane() {
    let (processes, former) = (Processes::new(), FormerControlPlane::default());
    let services = Routes::new(ImbalanceServer::new(former.clone()));
    let address = processes.socket("control").to_string();
    let control = Server::start_with(Memory::new(1), &address, services).await;
    let replica = processes.replica("replica", std::slice::from_ref(&control.address)).await;
    let connection = replica.connect().await;
    let connected = async { while replica.page("/readyz").await.lines().last() != Some("ready") {} };
    timeout(BOUND, connected).await.unwrap();
    let usage = v1::InstanceUsage {
        service: "shop/cart".into(),
        instance: "a".into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        minutes: vec![v1::MinuteUsage { minute: 5, cpu_us: 1, covered_ms: 60_000, ..Default::default() }],
    };
    let report = v1::ReportSignalsRequest { usages: vec![usage.clone()], ..Default::default() };
    let response = connection.report_signals(report).await.unwrap();
    assert_eq!(response.dropped_minutes, 7, "the response of the control plane");
    let taken: Vec<_> = former.0.lock().unwrap().iter().flat_map(|report| report.usages.clone()).collect();
    assert_eq!(taken, [usage], "once");
    replica.stop().await;
    control.stop().await;
}
