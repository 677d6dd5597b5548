//! Sums of traffic reports on their way to the process above.

use fairmesh_model::Region;
use fairmesh_rib::ReportRelay;
use fairmesh_signals::SumLimits;
use fairmesh_wire::v1::{
    self,
    imbalance_server::{Imbalance, ImbalanceServer},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};

use crate::{
    socket,
    support::{BOUND, Memory, Reader, Server},
};

/// Hands reports to the test.
struct Received(mpsc::UnboundedSender<v1::TrafficReport>);

#[tonic::async_trait]
impl Imbalance for Received {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        let _ = self.0.send(request.into_inner().traffic.unwrap());
        let watched = vec!["shop/cart".to_owned()];
        Ok(Response::new(v1::ReportUsageResponse { dropped: 0, next_traffic_ms: 1_000, watched }))
    }

    async fn read(
        &self,
        _: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

#[tokio::test]
async fn a_relay_that_stops_takes_its_sums_back() {
    let ((_folder, address), (sender, mut received)) = (socket(), mpsc::unbounded_channel());
    let services = Routes::new(ImbalanceServer::new(Received(sender)));
    let server = Server::start_with(Memory::new(1), &address, services).await;
    let reader = Reader::following(&[&server.address], &["/a/"]).await;
    let region = Region::new("eu").unwrap();
    let relay = ReportRelay::new(reader.handle.clone(), Some(region), SumLimits::AGENT);
    let servers = v1::ServerRates {
        service: "shop/cart".into(),
        region: "eu".into(),
        servers: 1,
        ..Default::default()
    };
    let report =
        v1::TrafficReport { reporter: 7, interval_ms: 10_000, servers: vec![servers], ..Default::default() };
    let told = relay.record(report.clone()).unwrap();
    assert!(told.watched.is_empty(), "the process above has said nothing yet");
    let stopping = CancellationToken::new();
    let running = tokio::spawn(relay.clone().run(stopping.clone()));
    let sum = timeout(BOUND, received.recv()).await.expect("the sum is reported").unwrap();
    assert_eq!((sum.servers.len(), sum.regions.len()), (1, 1));
    let passed_on = async {
        while relay.record(report.clone()).unwrap().watched != ["shop/cart"] {
            received.recv().await;
        }
    };
    timeout(BOUND, passed_on).await.expect("what operators look at is passed on");
    stopping.cancel();
    timeout(BOUND, running).await.expect("it stops").unwrap();
    let mut last = sum.clone();
    while let Ok(report) = received.try_recv() {
        last = report;
    }
    assert_eq!(last.reporter, sum.reporter);
    assert!(last.servers.is_empty() && last.regions.is_empty(), "{last:?}");
    server.stop().await;
}
