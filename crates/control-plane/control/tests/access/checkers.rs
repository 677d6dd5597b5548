//! Tests that elected agents are recorded as checkers, so that servers admit their probes.

use fairmesh_model::{Prefix, Record, RecordKey, Region};
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use tokio::time::timeout;
use tonic::{Code, Streaming};

use super::{
    members::{TestMember, join, own, start_strict},
    support::{BOUND, TestControl},
};

/// Campaigns in a region, and returns the leadership once the agent has been told that it is elected.
async fn elect(agent: &TestMember, control: &TestControl, region: &str) -> Streaming<v1::CampaignResponse> {
    let request = v1::CampaignRequest { region: region.into(), name: "chosen by the caller".into() };
    let mut leadership = agent.connect(control).await.checker().campaign(request).await.unwrap().into_inner();
    timeout(BOUND, leadership.message()).await.unwrap().unwrap().unwrap();
    leadership
}

/// The recorded checker of a region, read through another connection.
async fn recorded(connection: &Connection, region: &str) -> Option<String> {
    let key = RecordKey::Checker(Region::new(region).unwrap());
    let request = v1::ReadRequest { prefixes: vec![Prefix::checkers().to_string()], ..Default::default() };
    let read = connection.rib().read(request).await.unwrap().into_inner();
    let entry = read.entries.into_iter().find(|entry| entry.key == key.to_string())?;
    match record_encoding::decode(&key, &entry.value).unwrap() {
        Record::ElectedChecker(checker) => Some(checker.agent.to_string()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn elected_health_checker_is_recorded_under_identity_of_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let first = join(&control, "web-1", &[], "eu").await;
    let second = join(&control, "web-2", &[], "eu").await;
    let red = join(&control, "red-1", &["red"], "eu").await.connect(&control).await;
    assert_eq!(recorded(&red, "eu").await, None);
    let leadership = elect(&first, &control, "eu").await;
    assert_eq!(recorded(&red, "eu").await.as_deref(), Some("web-1"));
    drop(leadership);
    let leadership = elect(&second, &control, "eu").await;
    assert_eq!(recorded(&red, "eu").await.as_deref(), Some("web-2"));
    let request = v1::CampaignRequest { region: "us".into(), name: "web-1".into() };
    let refused = own(&control).await.checker().campaign(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "no certificate: {refused}");
    drop((leadership, red));
    control.stop().await;
}
