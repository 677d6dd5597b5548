//! Tests of aggregated reports on their way upstream.

use fairmesh_model::{Region, TrafficReport};
use fairmesh_rib::ReportRelay;
use fairmesh_signals::{ReportSource, SumLimits};
use fairmesh_wire::v1::{
    self,
    imbalance_server::{Imbalance, ImbalanceServer},
    signals_server::{Signals, SignalsServer},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};

use crate::{
    socket,
    support::{BOUND, Memory, Reader, Server},
};

/// An upstream that passes rates to the test.
struct ReportingUpstream(mpsc::UnboundedSender<TrafficReport>);

impl ReportingUpstream {
    fn take(&self, mut report: v1::ReportSignalsRequest) -> v1::ReportSignalsResponse {
        let _ = self.0.send(report.take_rates().unwrap().unwrap());
        let watched = vec!["shop/cart".to_owned()];
        v1::ReportSignalsResponse { next_report_ms: 1_000, watched, ..Default::default() }
    }
}

#[tonic::async_trait]
impl Signals for ReportingUpstream {
    async fn report_gateway(
        &self,
        _: Request<v1::ReportGatewayRequest>,
    ) -> Result<Response<v1::ReportGatewayResponse>, Status> {
        Err(Status::unimplemented("a relay reports none"))
    }

    async fn report(
        &self,
        request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        Ok(Response::new(self.take(request.into_inner())))
    }
}

#[tonic::async_trait]
impl Imbalance for ReportingUpstream {
    async fn report(
        &self,
        request: Request<v1::ReportUsageRequest>,
    ) -> Result<Response<v1::ReportUsageResponse>, Status> {
        Ok(Response::new(self.take(request.into_inner().into()).into()))
    }

    async fn read(
        &self,
        _: Request<v1::ReadImbalanceRequest>,
    ) -> Result<Response<v1::ReadImbalanceResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// Reports to an upstream that serves the given services, then stops.
async fn report_and_stop(serve: fn(ReportingUpstream) -> Routes) {
    let ((_folder, address), (sender, mut received)) = (socket(), mpsc::unbounded_channel());
    let server = Server::start_with(Memory::new(1), &address, serve(ReportingUpstream(sender))).await;
    let reader = Reader::following(&[&server.address], &["/a/"]).await;
    let region = Region::new("eu").unwrap();
    let relay = ReportRelay::new(reader.handle.clone(), Some(region), SumLimits::AGENT);
    let servers = v1::ServerRates {
        service: "shop/cart".into(),
        region: "eu".into(),
        servers: 1,
        ..Default::default()
    };
    let below = v1::SignalSender { reporter: 7, interval_ms: 10_000, regions: Vec::new() };
    let report =
        v1::ReportSignalsRequest { sender: Some(below), servers: vec![servers], ..Default::default() };
    let take = || relay.take_rates(&ReportSource::of_mesh(), &mut report.clone()).unwrap().unwrap();
    assert!(take().watched.is_empty(), "the process above has said nothing yet");
    let stopping = CancellationToken::new();
    let running = tokio::spawn(relay.clone().run(stopping.clone()));
    let sum = timeout(BOUND, received.recv()).await.expect("the sum is reported").unwrap();
    assert_eq!((sum.servers.len(), sum.regions.len()), (1, 1));
    let passed_on = async {
        while take().watched != ["shop/cart"] {
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

#[tokio::test]
async fn stopping_traffic_report_relay_sends_empty_sums_upstream() {
    report_and_stop(|above| Routes::new(SignalsServer::new(above))).await;
}

#[tokio::test]
async fn traffic_report_relay_works_with_upstream_of_previous_release() {
    report_and_stop(|above| Routes::new(ImbalanceServer::new(above))).await;
}
