//! Tests of genuine and forged calls through a replica.

use std::time::Duration;

use fairmesh_model::{MAX_INCOMPLETE_SERVICES, Policy, Protocol, Record, Traffic, TrafficPlanner};
use fairmesh_wire::{record_encoding, v1};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::{
    members::{join, own},
    strict_replica::StrictReplica,
    support::{policy_key, put, service, service_key},
};

/// Time between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(20);

fn registration(service: &str, instance: &str) -> v1::RegisterRequest {
    let location = v1::Location { region: "eu".into(), ..Default::default() };
    let endpoint = v1::Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:80".into(),
        location: Some(location),
        weight: 1000,
        mtls: true,
        ..Default::default()
    };
    let registration = v1::Registration {
        service: service.into(),
        endpoint: Some(endpoint),
        declaration: Some(v1::Service::default()),
    };
    v1::RegisterRequest { registrations: vec![registration] }
}

/// A report by the service `caller` of `per_second` calls per second to `service`.
fn traffic(caller: &str, service: &str, per_second: u64) -> v1::ReportSignalsRequest {
    let calls = v1::CallRates {
        service: service.into(),
        from: "eu".into(),
        to: "eu".into(),
        caller: caller.into(),
        offered: per_second * 1_000,
        attempts: per_second * 1_000,
        answered: per_second * 1_000,
        ..Default::default()
    };
    let sender = v1::SignalSender { reporter: 7, interval_ms: 60_000, regions: vec!["eu".into()] };
    v1::ReportSignalsRequest { sender: Some(sender), calls: vec![calls], ..Default::default() }
}

fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::NotFound | Code::PermissionDenied)
}

/// Returns the calls to a service that the planner knows, in thousandths per second.
async fn offered(replica: &StrictReplica, service: &str) -> u64 {
    let request = v1::TrafficCallsRequest { service: service.into(), ..Default::default() };
    let answer = own(&replica.control).await.traffic_planner().calls(request).await.unwrap().into_inner();
    answer.calls.iter().map(|calls| calls.offered).sum()
}

#[tokio::test]
async fn signed_call_through_replica_is_authorized_as_original_caller() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    let [blue, red] = [
        join(&replica.control, "blue-1", &["blue"], "eu").await,
        join(&replica.control, "red-1", &["red"], "eu").await,
    ];
    let agent = replica.connect_stating(&blue).await;
    agent.registry().register(registration("blue/vault", "vault-0")).await.unwrap();
    let program = blue.issue(&replica.control, "blue/vault").await.unwrap();
    let program = replica.connect_stating(&program).await;
    program.registry().register(registration("blue/vault", "vault-1")).await.unwrap();
    let intruder = red.issue(&replica.control, "red/x").await.unwrap();
    let mut registry = replica.connect_stating(&intruder).await.registry();
    let refused = registry.register(registration("blue/vault", "vault-2")).await.unwrap_err();
    assert!(is_refusal(&refused), "{refused}");
    replica.stop().await;
}

#[tokio::test]
async fn usage_minutes_forwarded_by_replica_must_be_signed_by_owner() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    let [blue, red] = [
        join(&replica.control, "blue-1", &["blue"], "eu").await,
        join(&replica.control, "red-1", &["red"], "eu").await,
    ];
    let agent = replica.connect_stating(&blue).await;
    agent.registry().register(registration("blue/vault", "vault-0")).await.unwrap();
    // The minute is long past: the control plane accepts the report and drops the minute.
    let usage = v1::InstanceUsage {
        service: "blue/vault".into(),
        instance: "vault-0".into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        minutes: vec![v1::MinuteUsage { minute: 1, covered_ms: 60_000, ..Default::default() }],
    };
    let report = v1::ReportSignalsRequest { usages: vec![usage], ..Default::default() };
    assert_eq!(agent.report_signals(report.clone()).await.unwrap().dropped_minutes, 1);
    let former = v1::ReportUsageRequest::from(report.clone());
    assert_eq!(agent.imbalance().report(former).await.unwrap().into_inner().dropped, 1);
    let intruder = replica.connect_stating(&red).await;
    let refused = intruder.report_signals(report.clone()).await.unwrap_err();
    assert!(is_refusal(&refused), "{refused}");
    let both = v1::ReportSignalsRequest { usages: report.usages, ..traffic("blue/web", "blue/vault", 5) };
    let refused = agent.report_signals(both).await.unwrap_err();
    assert!(refused.message().contains("report them apart"), "{refused}");
    replica.stop().await;
}

#[tokio::test]
async fn replica_sums_only_traffic_reports_with_permission() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    let [blue, red] = [
        join(&replica.control, "blue-1", &["blue"], "eu").await,
        join(&replica.control, "red-1", &["red"], "eu").await,
    ];
    let agent = replica.connect_stating(&blue).await;
    agent.registry().register(registration("blue/vault", "vault-0")).await.unwrap();
    let program = red.issue(&replica.control, "red/x").await.unwrap();
    for (sender, caller, service) in [
        (&program, "red/x", "blue/vault"),
        (&program, "red/x", "red/x"),
        (&red, "red/x", "blue/vault"),
        (&red, "blue/web", "red/x"),
        (&red, "", "blue/vault"),
    ] {
        for connection in [replica.connect(sender).await, replica.connect_stating(sender).await] {
            let report = traffic(caller, service, 9_000_000);
            let former = connection.imbalance().report(v1::ReportUsageRequest::from(report.clone())).await;
            for refused in [connection.signals().report(report).await.err(), former.err()] {
                let refused = refused.unwrap_or_else(|| panic!("{caller} calls {service}"));
                assert!(is_refusal(&refused), "{caller} calls {service}: {refused}");
            }
        }
    }
    replica
        .connect_stating(&blue)
        .await
        .signals()
        .report(traffic("blue/web", "blue/vault", 5))
        .await
        .unwrap();
    let arrived = async {
        while offered(&replica, "blue/vault").await == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::BOUND, arrived).await.expect("the sum arrives");
    assert_eq!(offered(&replica, "blue/vault").await, 5_000, "and nothing forged with it");
    replica.stop().await;
}

/// Declares services that a planner plans.
async fn plan(replica: &StrictReplica, names: &[&str]) {
    let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
    let policy = Policy { traffic: Some(Box::new(traffic)), ..Policy::default() };
    let policy = record_encoding::encode(&Record::Policy(policy)).to_vec();
    let ops = names.iter().flat_map(|name| {
        [put(service_key(name), service(Protocol::Http1)), put(policy_key(name), policy.clone())]
    });
    own(&replica.control).await.rib().write(v1::WriteRequest { ops: ops.collect() }).await.unwrap();
}

/// Whether the planner lacks reports of a service.
async fn is_incomplete(replica: &StrictReplica, service: &str) -> bool {
    let request = v1::TrafficStatusRequest { service: service.into() };
    let status = own(&replica.control).await.traffic_planner().status(request).await.unwrap().into_inner();
    status.services.iter().any(|one| one.refusal.contains("no room"))
}

#[tokio::test]
async fn replica_passes_on_only_incomplete_services_that_sender_may_name() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    plan(&replica, &["red/x", "blue/vault"]).await;
    let red = join(&replica.control, "red-1", &["red"], "eu").await;
    let agent = replica.connect_stating(&red).await;
    let invented = (0..MAX_INCOMPLETE_SERVICES - 2).map(|n| format!("red/s{n}"));
    let incomplete: Vec<_> = invented.chain(["red/x".to_owned(), "blue/vault".to_owned()]).collect();
    let arrived = async {
        while !is_incomplete(&replica, "red/x").await {
            let report =
                v1::ReportSignalsRequest { incomplete: incomplete.clone(), ..traffic("", "red/x", 1) };
            agent.signals().report(report).await.unwrap();
            sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(crate::support::BOUND, arrived).await.expect("its own service is incomplete");
    assert!(!is_incomplete(&replica, "blue/vault").await);
    replica.stop().await;
}

#[tokio::test]
async fn replica_tells_sender_only_of_watched_services_that_it_may_see() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    let names = ["blue/y", "red/y"];
    let ops = names.map(|name| put(service_key(name), service(Protocol::Http1))).into();
    own(&replica.control).await.rib().write(v1::WriteRequest { ops }).await.unwrap();
    let look = async || {
        for name in names {
            offered(&replica, name).await;
        }
    };
    let agents = [("red-1", "red", "red/y"), ("blue-1", "blue", "blue/y")];
    for (name, tenant, expected) in agents {
        let agent = join(&replica.control, name, &[tenant], "eu").await;
        let agent = replica.connect_stating(&agent).await;
        let told = async {
            loop {
                look().await;
                let report = traffic("", &format!("{tenant}/x"), 1);
                let watched = agent.signals().report(report).await.unwrap().into_inner().watched;
                if !watched.is_empty() {
                    return watched;
                }
                sleep(PAUSE).await;
            }
        };
        let watched = tokio::time::timeout(crate::support::BOUND, told).await.expect("it is told");
        assert_eq!(watched, [expected]);
    }
    replica.stop().await;
}
