//! Grants of callers in a mesh with a trust domain.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../control-plane/control/tests/support/mod.rs"]
mod support;

#[path = "../../../control-plane/control/tests/support/members.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod members;

use fairmesh_calls::Mesh;
use fairmesh_lookaside::{LeaseTerms, Limits, LookasideConfig};
use fairmesh_model::{
    Authorization, AuthorizationRule, CallerMatch, DefaultAuthorization, Location, Policy, Record, RecordKey,
    Region,
};
use fairmesh_test_support::free_port;
use fairmesh_wire::{
    lookaside::v1::{PickRequest, lookaside_client::LookasideClient},
    record_encoding,
    transport::{Address, connect_channel},
    v1,
};
use members::{TestMember, join, own, start_strict};
use support::{BOUND, TestControl, policy_key, put};
use tokio::{sync::oneshot, time::timeout};
use tonic::{Code, Status};

/// Registers an endpoint of a service whose policy, if given, allows this caller.
async fn declare(control: &TestControl, service: &str, allowed: Option<&str>) {
    let location = v1::Location { region: "eu".into(), ..Default::default() };
    let endpoint = v1::Endpoint {
        instance: "one".into(),
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
    let connection = own(control).await;
    connection.registry().register(v1::RegisterRequest { registrations: vec![registration] }).await.unwrap();
    let Some(caller) = allowed else { return };
    let from = vec![CallerMatch::new(caller).unwrap()];
    let rule = AuthorizationRule::allowing("one".parse().unwrap(), from);
    let authorization = Some(Box::new(Authorization { rules: vec![rule], ..Authorization::default() }));
    let policy = Policy { authorization, ..Policy::default() };
    let op = put(policy_key(service), record_encoding::encode(&Record::Policy(policy)).to_vec());
    connection.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap();
}

async fn pick(member: &TestMember, lookaside: &Address, service: &str) -> Result<usize, Status> {
    let connected = async {
        loop {
            match connect_channel(&member.transport(), lookaside).await {
                Ok(channel) => return channel,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let mut caller = LookasideClient::new(timeout(BOUND, connected).await.expect("it listens"));
    let request = PickRequest { service: service.into(), endpoints: 1, ..PickRequest::default() };
    caller.pick(request).await.map(|picked| picked.into_inner().leases.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookaside_picks_only_for_callers_allowed_to_read_service() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let default = record_encoding::encode(&Record::DefaultAuthorization(DefaultAuthorization::Deny)).to_vec();
    let ops = vec![put(RecordKey::DefaultAuthorization.to_string(), default)];
    own(&control).await.rib().write(v1::WriteRequest { ops }).await.unwrap();
    declare(&control, "blue/vault", None).await;
    declare(&control, "blue/api", Some("red/x")).await;
    let [beside, blue, red] = [
        join(&control, "rib-1", &[], "eu").await,
        join(&control, "blue-1", &["blue"], "eu").await,
        join(&control, "red-1", &["red"], "eu").await,
    ];
    let transport = beside.issue(&control, "fairmesh/proxy/rib-1.lookaside").await.unwrap().transport();
    let mesh =
        Mesh::builder().transport(transport.clone()).control(control.grpc[0].clone()).client_id("test");
    let mesh = mesh.location(Location::in_region(Region::new("eu").unwrap())).connect().await.unwrap();
    let listen: Address = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    let config = LookasideConfig {
        transport,
        upstreams: vec![control.grpc[0].clone()],
        listen: listen.clone(),
        admin: None,
        lease_terms: LeaseTerms::default(),
        limits: Limits::default(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let served = tokio::spawn(fairmesh_lookaside::run(config, mesh, stopped));

    let [own_web, other] =
        [blue.issue(&control, "blue/web").await.unwrap(), red.issue(&control, "red/x").await.unwrap()];
    assert_eq!(pick(&own_web, &listen, "blue/vault").await.unwrap(), 1, "its own tenant");
    assert_eq!(pick(&blue, &listen, "blue/vault").await.unwrap(), 1, "its agent");
    assert_eq!(pick(&other, &listen, "blue/api").await.unwrap(), 1, "it may call the service");
    for (caller, service) in [(&other, "blue/vault"), (&red, "blue/vault"), (&other, "blue/nothing")] {
        let refused = pick(caller, &listen, service).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert!(refused.message().contains(&format!("there is no service {service} that")), "{refused}");
    }
    stop.send(()).unwrap();
    timeout(BOUND, served).await.unwrap().unwrap().unwrap();
    control.stop().await;
}
