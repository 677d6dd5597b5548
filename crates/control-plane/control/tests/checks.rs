//! Tests of the election of a region's checker, and of its verdicts.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod support;

use std::time::Duration;

use fairmesh_model::{HealthCheck, Policy, Probe, Record, RecordKey, Verdict};
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use support::{BOUND, TestControl, config, delete, policy_key, put, read_all};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status, Streaming};

async fn campaign(connection: &Connection, region: &str) -> Streaming<v1::CampaignResponse> {
    let request = v1::CampaignRequest { region: region.into(), name: "test".into() };
    connection.checker().campaign(request).await.unwrap().into_inner()
}

/// The next message to the candidate. The first one shows that it is elected.
async fn next_response(leadership: &mut Streaming<v1::CampaignResponse>) -> v1::CampaignResponse {
    timeout(BOUND, leadership.message()).await.unwrap().unwrap().unwrap()
}

async fn judge(connection: &Connection, term: u64, failures: u32) -> Result<(), Status> {
    let confidence = Verdict::confidence_of(failures);
    let healthy = failures == 0;
    let verdict =
        Verdict { healthy, since_ms: u64::from(failures), confidence, cause: String::new(), stale: false };
    let judgement = |instance: &str| v1::Judgement {
        service: "shop/one".into(),
        instance: instance.into(),
        verdict: Some(verdict.clone().into()),
    };
    let judgements = vec![judgement("a"), judgement("unregistered")];
    let request = v1::JudgeRequest { region: "eu".into(), term, judgements };
    connection.checker().judge(request).await.map(drop)
}

/// The only verdict in the records.
async fn verdict(connection: &Connection) -> Option<Verdict> {
    let entries = read_all(connection).await.entries.into_iter();
    let mut health = entries.filter(|entry| entry.key.contains("/health/")).map(|entry| {
        match record_encoding::decode(&RecordKey::parse(&entry.key).unwrap(), &entry.value).unwrap() {
            Record::Verdict(verdict) => verdict,
            other => panic!("{other:?}"),
        }
    });
    let one = health.next();
    assert!(health.next().is_none());
    one
}

async fn write(connection: &Connection, op: v1::Op) {
    let request = v1::ApplyRequest { ops: vec![op], dry_run: false, ..Default::default() };
    connection.admin().apply(request).await.unwrap();
}

/// A control plane with a service that has a health check and a single endpoint.
async fn checked() -> (TestControl, Connection, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().join("data"))).await;
    let connection = control.connect().await;
    let policy = Policy { health_check: Some(HealthCheck::new(Probe::Tcp)), ..Policy::default() };
    write(&connection, put(policy_key("shop/one"), record_encoding::encode(&policy.into()).to_vec())).await;
    let endpoint = v1::Endpoint {
        instance: "a".into(),
        address: "127.0.0.1:1".into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        ..Default::default()
    };
    let registration =
        v1::Registration { service: "shop/one".into(), endpoint: Some(endpoint), declaration: None };
    let request = v1::RegisterRequest { registrations: vec![registration] };
    connection.registry().register(request).await.unwrap();
    (control, connection, folder)
}

#[tokio::test]
async fn next_health_checker_is_elected_when_leader_disconnects() {
    let (control, connection, _folder) = checked().await;
    let (holder, heir) = (control.connect().await, control.connect().await);
    let mut first = campaign(&holder, "eu").await;
    let term = next_response(&mut first).await.term;
    let mut second = campaign(&heir, "eu").await;
    let mut elsewhere = campaign(&heir, "us").await;
    next_response(&mut elsewhere).await;
    assert!(timeout(Duration::from_millis(100), second.message()).await.is_err(), "one at a time");
    judge(&connection, term, 3).await.unwrap();
    drop((first, holder));
    let next = next_response(&mut second).await;
    assert_eq!(next.services, ["shop/one"]);
    let late = judge(&connection, term, 0).await.unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    judge(&connection, next.term, 0).await.unwrap();
    drop((second, elsewhere, heir, connection));
    control.stop().await;
}

#[tokio::test]
async fn changed_verdicts_are_written_and_those_of_removed_endpoints_deleted() {
    let (control, connection, _folder) = checked().await;
    let mut leadership = campaign(&connection, "eu").await;
    let term = next_response(&mut leadership).await.term;
    judge(&connection, term, 3).await.unwrap();
    let found = verdict(&connection).await.unwrap();
    assert_eq!((found.healthy, found.since_ms, found.confidence), (false, 3, 750));
    let revision = async || read_all(&connection).await.at.unwrap().numbers[&0];
    let before = revision().await;
    let (_, body) = control.http("GET", "/metrics", "").await;
    assert!(body.contains(r#"fairmesh_control_unhealthy_endpoints{region="eu"} 1"#), "{body}");
    judge(&connection, term, 4).await.unwrap();
    assert_eq!(revision().await, before, "same health and same force");
    judge(&connection, term, 9).await.unwrap();
    let surer = verdict(&connection).await.unwrap();
    assert_eq!((surer.since_ms, surer.confidence), (3, 900), "the time of the first verdict is kept");

    let gone = v1::InstanceRef { service: "shop/one".into(), instance: "a".into(), ..Default::default() };
    connection
        .registry()
        .deregister(v1::DeregisterRequest { instances: vec![gone], only_lost: false })
        .await
        .unwrap();
    let none = async {
        while verdict(&connection).await.is_some() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(BOUND, none).await.unwrap();
    judge(&connection, term, 9).await.unwrap();
    assert_eq!(verdict(&connection).await, None, "the endpoint is gone");

    write(&connection, delete(policy_key("shop/one"))).await;
    assert!(next_response(&mut leadership).await.services.is_empty(), "no service is checked any more");
    let (status, body) = control.http("GET", "/metrics", "").await;
    assert!(status.contains("200") && body.contains("fairmesh_control_checkers 1"), "{body}");
    assert!(!body.contains("unhealthy_endpoints{"), "{body}");
    drop((leadership, connection));
    control.stop().await;
}
