//! Calls every forwarded method without a statement: a replica lends its callers none of its own rights.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_rib::access::{METHODS, MethodAccess};
use fairmesh_wire::{
    transport::{Address, Transport, connect_channel_lazy},
    v1,
};
use http_body_util::Full;
use prost::Message;
use tokio::time::timeout;
use tonic::{Code, body::Body};
use tower_service::Service as _;

use crate::{members::join, strict_replica::StrictReplica, support::BOUND};

/// The services that a replica forwards.
const FORWARDED: [&str; 5] = ["Registry", "Signals", "Imbalance", "Quota", "Checker"];

fn instance() -> v1::InstanceRef {
    v1::InstanceRef { service: "blue/vault".into(), instance: "vault-0".into(), incarnation: 0 }
}

/// Returns a request for each forwarded method, about the tenant blue or a region in which no caller joined.
fn requests() -> BTreeMap<&'static str, Vec<u8>> {
    fn of(message: impl Message) -> Vec<u8> {
        message.encode_to_vec()
    }
    let service = || "blue/vault".to_owned();
    let endpoint = v1::Endpoint { instance: "vault-0".into(), ..Default::default() };
    let registration = v1::Registration { service: service(), endpoint: Some(endpoint), declaration: None };
    let instances = || vec![instance()];
    let report = v1::StateReport { instance: Some(instance()), ..Default::default() };
    let usage = v1::InstanceUsage { service: service(), instance: "vault-0".into(), ..Default::default() };
    let demand = v1::Demand { service: service(), ..Default::default() };
    let us = || "us".to_owned();
    BTreeMap::from([
        ("Registry/Register", of(v1::RegisterRequest { registrations: vec![registration] })),
        ("Registry/Renew", of(v1::RenewRequest { instances: instances(), ..Default::default() })),
        ("Registry/Report", of(v1::ReportRequest { reports: vec![report], by_operator: false })),
        ("Registry/Drain", of(v1::DrainRequest { instances: instances(), ..Default::default() })),
        ("Registry/Deregister", of(v1::DeregisterRequest { instances: instances(), ..Default::default() })),
        ("Registry/GetShards", of(v1::GetShardsRequest { service: service() })),
        ("Registry/PutShards", of(v1::PutShardsRequest { service: service(), ..Default::default() })),
        ("Registry/SplitShard", of(v1::SplitShardRequest { service: service(), ..Default::default() })),
        ("Registry/MergeShards", of(v1::MergeShardsRequest { service: service(), ..Default::default() })),
        ("Registry/MoveShard", of(v1::MoveShardRequest { service: service(), ..Default::default() })),
        ("Registry/ListMoves", of(v1::ListMovesRequest { service: service() })),
        (
            "Registry/ReportShards",
            of(v1::ReportShardsRequest { instance: Some(instance()), ..Default::default() }),
        ),
        (
            "Registry/ReportShardLoad",
            of(v1::ReportShardLoadRequest { instance: Some(instance()), ..Default::default() }),
        ),
        ("Registry/ReadShardLoads", of(v1::ReadShardLoadsRequest { service: service() })),
        ("Registry/ProposeMoves", of(v1::ProposeMovesRequest { service: service(), ..Default::default() })),
        ("Registry/ReadPlaintextCallers", of(v1::ReadPlaintextCallersRequest { service: service() })),
        (
            "Signals/Report",
            of(v1::ReportSignalsRequest { usages: vec![usage.clone()], ..Default::default() }),
        ),
        ("Signals/ReportGateway", of(v1::ReportGatewayRequest::default())),
        ("Imbalance/Report", of(v1::ReportUsageRequest { usages: vec![usage], traffic: None })),
        ("Imbalance/Read", of(v1::ReadImbalanceRequest::default())),
        ("Quota/Claim", of(v1::ClaimRequest { caller: 7, demands: vec![demand] })),
        ("Checker/Campaign", of(v1::CampaignRequest { region: us(), name: "x".into() })),
        ("Checker/Judge", of(v1::JudgeRequest { region: us(), ..Default::default() })),
        ("Checker/ReportProbes", of(v1::ReportProbesRequest { region: us(), ..Default::default() })),
        ("Checker/ReportDistances", of(v1::ReportDistancesRequest { region: us(), ..Default::default() })),
    ])
}

/// Returns the status of a call that fails before its response begins.
async fn status(transport: &Transport, address: &Address, method: &str, message: &[u8]) -> Code {
    let length = u32::try_from(message.len()).unwrap();
    let body = Bytes::from([&[0][..], &length.to_be_bytes(), message].concat());
    let request = http::Request::post(format!("http://replica/fairmesh.v1.{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("fairmesh-version", "1")
        .body(Body::new(Full::new(body)))
        .unwrap();
    let mut channel = connect_channel_lazy(transport, address);
    let response = timeout(BOUND, channel.call(request)).await.expect(method);
    let headers = response.unwrap_or_else(|status| status.into_http()).headers().clone();
    let code = headers.get("grpc-status").map_or(0, |code| code.to_str().unwrap().parse().unwrap());
    Code::from_i32(code)
}

#[tokio::test]
async fn forwarded_methods_never_use_replica_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let replica = StrictReplica::start(folder.path()).await;
    let requests = requests();
    let judged = METHODS.iter().filter(|method| matches!(method.access, MethodAccess::Of(_)));
    let paths = judged.filter_map(|method| method.path.strip_prefix("/fairmesh.v1."));
    let forwarded: Vec<_> =
        paths.filter(|path| FORWARDED.iter().any(|service| path.starts_with(service))).collect();
    assert_eq!(forwarded.len(), requests.len(), "a request for each: {forwarded:?}");
    let agent = join(&replica.control, "red-1", &["red"], "eu").await;
    let service = agent.issue(&replica.control, "red/x").await.unwrap();
    let other = join(&replica.control, "rib-2", &[], "eu").await;
    let beside = other.issue(&replica.control, "fairmesh/replica/rib-2.eu").await.unwrap();
    for path in forwarded {
        let request = &requests[path];
        for (position, caller) in [("service", &service), ("agent of another tenant", &agent)] {
            let code = status(&caller.transport(), &replica.address, path, request).await;
            assert!(
                matches!(code, Code::NotFound | Code::PermissionDenied),
                "{path} by a {position}: {code:?}"
            );
        }
        // A replica further down the tree may read what it forwards, but vouches for no caller.
        let code = status(&beside.transport(), &replica.address, path, request).await;
        let adds_up = ["Signals/Report", "Imbalance/Report"].contains(&path);
        assert!(
            adds_up || matches!(code, Code::NotFound | Code::PermissionDenied),
            "{path} by a replica: {code:?}"
        );
    }
    replica.stop().await;
}
