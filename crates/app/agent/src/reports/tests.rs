use fairmesh_model::Prefix;
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::transport::Address;

use super::*;

/// Discards updates; reports go to the test.
struct DiscardUpdates;

impl Sink for DiscardUpdates {
    fn update(&mut self, _: Update) {}
    fn refused(&mut self, _: &Prefix, _: &str) {}
}

/// An unreachable upstream.
pub(crate) fn absent() -> FollowerHandle {
    let config = FollowerConfig {
        transport: Default::default(),
        addresses: vec![Address::Unix("/nowhere/control.sock".into())],
        software: "test".to_owned(),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    Follower::spawn(config, DiscardUpdates)
}

fn reports() -> Reports {
    let forward = Forwarder::new(absent(), "agent", CancellationToken::new());
    Reports::new(forward, "nowhere".to_owned(), Region::new("eu").unwrap())
}

/// A report with one minute of CPU usage and the load of a server.
fn report() -> v1::ReportSignalsRequest {
    let minute = v1::MinuteUsage { minute: 5, cpu_us: 1, covered_ms: 60_000, ..Default::default() };
    let usage = v1::InstanceUsage {
        service: "shop/cart".into(),
        instance: "a".into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        minutes: vec![minute],
    };
    let servers = v1::ServerRates {
        service: "shop/cart".into(),
        region: "eu".into(),
        servers: 1,
        ..Default::default()
    };
    let sender = v1::SignalSender { reporter: 7, interval_ms: 1_000, regions: vec!["eu".into()] };
    v1::ReportSignalsRequest {
        sender: Some(sender),
        usages: vec![usage],
        servers: vec![servers],
        ..Default::default()
    }
}

#[tokio::test]
async fn program_report_queues_its_cpu_usage_and_is_added_to_load_sum() {
    let reports = reports();
    let response = Signals::report(&reports, Request::new(report())).await.unwrap().into_inner();
    assert_eq!(response.next_report_ms, 1_000);
    assert_eq!((reports.usages.queued(), reports.rates.reporters()), (1, 1));
}

#[tokio::test]
async fn signals_report_of_previous_release_is_accepted() {
    let reports = reports();
    let former = v1::ReportUsageRequest::from(report());
    let response = Imbalance::report(&reports, Request::new(former)).await.unwrap().into_inner();
    assert_eq!(response.next_traffic_ms, 1_000);
    assert_eq!((reports.usages.queued(), reports.rates.reporters()), (1, 1));
}
