//! Tests of the targets for measuring distances, and of the records made from checkers' reports.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::BTreeMap;

use fairmesh_model::{Locality, Policy, Protocol, Record, RecordKey};
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use support::{BOUND, TestControl, config, policy_key, put, read_all, service, service_key};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

async fn campaign(connection: &Connection, region: &str) -> Streaming<v1::CampaignResponse> {
    let request = v1::CampaignRequest { region: region.into(), name: "test".into() };
    connection.checker().campaign(request).await.unwrap().into_inner()
}

/// Waits for a message with exactly these targets, written as `region port`. HTTP/2 targets are marked.
async fn targets_become(leadership: &mut Streaming<v1::CampaignResponse>, wanted: &[&str]) -> u64 {
    let become_wanted = async {
        loop {
            let response = leadership.message().await.unwrap().unwrap();
            let shown = response.targets.iter().map(|target| {
                let port = target.address.rsplit(':').next().unwrap();
                format!("{} {port}{}", target.region, if target.http2 { " http2" } else { "" })
            });
            if shown.collect::<Vec<_>>() == wanted {
                return response.term;
            }
        }
    };
    timeout(BOUND, become_wanted).await.unwrap()
}

async fn write(connection: &Connection, ops: Vec<v1::Op>) {
    connection.admin().apply(v1::ApplyRequest { ops, dry_run: false, ..Default::default() }).await.unwrap();
}

async fn register(connection: &Connection, of: &str, region: &str, port: u16) {
    let endpoint = v1::Endpoint {
        instance: format!("{region}-{port}"),
        address: format!("127.0.0.1:{port}"),
        location: Some(v1::Location { region: region.into(), ..Default::default() }),
        ..Default::default()
    };
    let registration = v1::Registration { service: of.into(), endpoint: Some(endpoint), declaration: None };
    let request = v1::RegisterRequest { registrations: vec![registration] };
    connection.registry().register(request).await.unwrap();
}

async fn deregister(connection: &Connection, of: &str, region: &str, port: u16) {
    let instance = format!("{region}-{port}");
    let gone = v1::InstanceRef { service: of.into(), instance, ..Default::default() };
    connection
        .registry()
        .deregister(v1::DeregisterRequest { instances: vec![gone], only_lost: false })
        .await
        .unwrap();
}

async fn report(
    connection: &Connection,
    (region, term): (&str, u64),
    distances: &[(&str, u64)],
) -> Result<(), Status> {
    let distance =
        |(region, rtt_us): &(&str, u64)| v1::ReportedDistance { region: (*region).into(), rtt_us: *rtt_us };
    let distances = distances.iter().map(distance).collect();
    let request = v1::ReportDistancesRequest { region: region.into(), term, distances };
    connection.checker().report_distances(request).await.map(drop)
}

/// The recorded distances in microseconds, by source and destination, and the revision of the RIB.
async fn recorded(connection: &Connection) -> (BTreeMap<String, u64>, u64) {
    let all = read_all(connection).await;
    let mut found = BTreeMap::new();
    for entry in all.entries {
        let key = RecordKey::parse(&entry.key).unwrap();
        let RecordKey::MeasuredDistances(from) = &key else { continue };
        let Record::MeasuredDistances(distances) = record_encoding::decode(&key, &entry.value).unwrap()
        else {
            panic!("{key}")
        };
        for (to, distance) in distances.to {
            assert!(distance.measured_at_ms > 0);
            found.insert(format!("{from} {to}"), distance.round_trip.as_micros() as u64);
        }
    }
    (found, all.at.unwrap().numbers[&0])
}

/// A control plane with a service in two regions, and the leader of `eu` with its term.
async fn two_regions() -> (TestControl, Connection, Streaming<v1::CampaignResponse>, u64, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().join("data"))).await;
    let connection = control.connect().await;
    write(&connection, vec![put(service_key("shop/one"), service(Protocol::Http1))]).await;
    register(&connection, "shop/one", "eu", 1).await;
    register(&connection, "shop/one", "us", 2).await;
    let mut leadership = campaign(&connection, "eu").await;
    let term = targets_become(&mut leadership, &["us 2"]).await;
    (control, connection, leadership, term, folder)
}

fn of(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(pair, rtt)| ((*pair).to_owned(), *rtt)).collect()
}

#[tokio::test]
async fn checker_gets_few_distance_targets_in_each_other_region() {
    let (control, connection, mut leadership, _, _folder) = two_regions().await;
    let local_only =
        Policy { locality: Locality { local_only: true, ..Locality::default() }, ..Policy::default() };
    write(
        &connection,
        vec![
            put(service_key("shop/two"), service(Protocol::Grpc)),
            put(service_key("shop/local"), service(Protocol::Http1)),
            put(policy_key("shop/local"), record_encoding::encode(&local_only.into()).to_vec()),
        ],
    )
    .await;
    for port in [3, 4, 5] {
        register(&connection, "shop/one", "us", port).await;
    }
    register(&connection, "shop/local", "us", 6).await;
    targets_become(&mut leadership, &["us 2", "us 3", "us 4"]).await;
    register(&connection, "shop/two", "us", 7).await;
    targets_become(&mut leadership, &["us 2", "us 7 http2", "us 3"]).await;
    deregister(&connection, "shop/one", "us", 2).await;
    targets_become(&mut leadership, &["us 3", "us 7 http2", "us 4"]).await;
    drop((leadership, connection));
    control.stop().await;
}

#[tokio::test]
async fn distance_is_recorded_at_first_and_after_lasting_changes() {
    let (control, connection, leadership, term, _folder) = two_regions().await;
    let eu = ("eu", term);
    report(&connection, eu, &[("us", 20_000)]).await.unwrap();
    let (distances, before) = recorded(&connection).await;
    assert_eq!(distances, of(&[("eu us", 20_000)]));
    for rtt in [20_500, 21_900, 19_000, 30_000, 30_000, 20_000, 30_000, 30_000] {
        report(&connection, eu, &[("us", rtt)]).await.unwrap();
    }
    assert_eq!(recorded(&connection).await, (distances, before), "nothing has changed lastingly");
    report(&connection, eu, &[("us", 31_000)]).await.unwrap();
    assert_eq!(recorded(&connection).await.0, of(&[("eu us", 31_000)]));
    drop((leadership, connection));
    control.stop().await;
}

#[tokio::test]
async fn implausible_distances_are_ignored_and_reports_of_nonleaders_refused() {
    let (control, connection, leadership, term, _folder) = two_regions().await;
    let eu = ("eu", term);
    let (_, before) = recorded(&connection).await;
    let nonsense = [("us", 0), ("us", 10_000_001), ("us", u64::MAX), ("mars", 5000), ("eu", 5000)];
    for one in nonsense {
        for _ in 0..4 {
            report(&connection, eu, &[one]).await.unwrap();
        }
    }
    assert_eq!(recorded(&connection).await, (BTreeMap::new(), before));
    let many = vec![("us", 5000); 257];
    assert_eq!(report(&connection, eu, &many).await.unwrap_err().code(), Code::InvalidArgument);
    let later = report(&connection, ("eu", term.wrapping_add(1)), &[("us", 5000)]).await;
    assert_eq!(later.unwrap_err().code(), Code::FailedPrecondition);
    let elsewhere = report(&connection, ("us", term), &[("eu", 5000)]).await;
    assert_eq!(elsewhere.unwrap_err().code(), Code::FailedPrecondition);
    let mut invented = campaign(&connection, "mars").await;
    let elected = targets_become(&mut invented, &["eu 1", "us 2"]).await;
    let unknown = report(&connection, ("mars", elected), &[("us", 5000)]).await;
    assert_eq!(unknown.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(
        recorded(&connection).await,
        (BTreeMap::new(), before),
        "a region that only its checker names"
    );
    drop(invented);
    report(&connection, eu, &[("us", 0), ("us", 5000)]).await.unwrap();
    assert_eq!(recorded(&connection).await.0, of(&[("eu us", 5000)]), "the plausible one counts");
    drop((leadership, connection));
    control.stop().await;
}

#[tokio::test]
async fn distance_to_vanished_region_is_retained() {
    let (control, connection, mut leadership, term, _folder) = two_regions().await;
    let eu = ("eu", term);
    report(&connection, eu, &[("us", 20_000)]).await.unwrap();
    deregister(&connection, "shop/one", "us", 2).await;
    targets_become(&mut leadership, &[]).await;
    for _ in 0..4 {
        report(&connection, eu, &[("us", 90_000)]).await.unwrap();
    }
    assert_eq!(recorded(&connection).await.0, of(&[("eu us", 20_000)]), "a region without targets");
    register(&connection, "shop/one", "us", 2).await;
    targets_become(&mut leadership, &["us 2"]).await;
    for _ in 0..3 {
        report(&connection, eu, &[("us", 40_000)]).await.unwrap();
    }
    assert_eq!(recorded(&connection).await.0, of(&[("eu us", 40_000)]));
    drop((leadership, connection));
    control.stop().await;
}
