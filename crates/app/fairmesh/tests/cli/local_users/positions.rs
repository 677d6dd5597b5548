//! Calls every agent method from every position on the agent's machine, and compares the results with the table in
//! `docs/security.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use fairmesh_identity::PrivateKey;
use fairmesh_wire::{handshake::Connection, spiffe, v1};
use prost::Message;
use tokio::time::timeout;
use tonic::{Code, Request, codegen::http::uri::PathAndQuery};

use super::{Machine, NEIGHBOUR, STRANGER, VAULT, drain, instance, registration};

/// Columns of the table, with the user of each.
const POSITIONS: [(&str, u32); 4] = [
    ("no record", STRANGER),
    ("another service", NEIGHBOUR),
    ("the service", VAULT),
    ("agent's user, root", 0),
];
const TITLE: &str = "### What an agent does for which program";
const SERVED: [&str; 7] =
    ["Rib", "Signals", "Imbalance", "Quota", "Registry", "Workload", "SpiffeWorkloadAPI"];

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Cells of the table by method.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let part = page.split(TITLE).nth(1).unwrap_or_else(|| panic!("{TITLE} is missing"));
    let rows: Vec<Vec<&str>> = part
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let heads: Vec<_> = POSITIONS.iter().map(|(name, _)| *name).collect();
    assert_eq!(rows[0][1..5], heads);
    let row = |cells: &Vec<&str>| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('`', "")).collect();
        assert_eq!(cells.len(), 6, "{cells:?}");
        (cells[0].clone(), cells[1..5].to_vec())
    };
    rows[2..].iter().map(row).collect()
}

/// Methods of the services that agents serve, from the protocol.
fn declared() -> BTreeSet<String> {
    let mut methods = BTreeSet::new();
    for folder in ["proto/fairmesh/v1", "proto/spiffe/workload"] {
        for file in fs::read_dir(root().join(folder)).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let mut service = "";
            for line in text.lines() {
                let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
                match (words.next(), words.next()) {
                    (Some("service"), Some(name)) => service = name,
                    (Some("rpc"), Some(name)) if SERVED.contains(&service) => {
                        methods.insert(format!("{service}/{name}"));
                    }
                    _ => {}
                }
            }
        }
    }
    methods
}

/// Whether the agent, or the control plane behind it, carries out the call.
async fn does<M: Message + Default + 'static>(connection: &Connection, method: &str, message: M) -> bool {
    let package = if method.starts_with("Spiffe") { "" } else { "fairmesh.v1." };
    let path = PathAndQuery::try_from(format!("/{package}{method}")).unwrap();
    let mut client = tonic::client::Grpc::new(connection.channel.clone());
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
    let codec = tonic_prost::ProstCodec::<M, ()>::default();
    // A unary method can be called as a stream with one message.
    let first = async { client.server_streaming(request, path, codec).await?.into_inner().message().await };
    let first =
        timeout(Duration::from_secs(20), first).await.unwrap_or_else(|_| panic!("{method}: no response"));
    let refusals = [Code::PermissionDenied, Code::Unimplemented, Code::FailedPrecondition];
    first.err().is_none_or(|status| !refusals.contains(&status.code()))
}

/// A report with per-minute usage of an instance of `blue/vault`.
fn minutes(instance: &str) -> v1::ReportSignalsRequest {
    let usage = v1::InstanceUsage {
        service: "blue/vault".into(),
        instance: instance.into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        ..Default::default()
    };
    v1::ReportSignalsRequest { usages: vec![usage], ..Default::default() }
}

/// A report of calls to `blue/vault`.
fn calls() -> v1::ReportSignalsRequest {
    let (service, eu) = ("blue/vault".to_owned(), || "eu".to_owned());
    let calls = v1::CallRates { service, from: eu(), to: eu(), ..Default::default() };
    let sender = v1::SignalSender { reporter: 1, ..Default::default() };
    v1::ReportSignalsRequest { sender: Some(sender), calls: vec![calls], ..Default::default() }
}

/// Makes the call of a row.
#[allow(clippy::too_many_lines, clippy::cognitive_complexity, reason = "one call for each row")]
async fn try_row(connection: &Connection, row: &str, vault: &str) -> bool {
    let service = || "blue/vault".to_owned();
    let one = || instance("blue/vault", vault);
    let c = connection;
    let method = row.split(',').next().unwrap();
    match row {
        "Rib/Hello" => does(c, method, v1::HelloRequest { newest_version: 99, ..Default::default() }).await,
        "Rib/Write" => {
            let op = v1::Op { key: "/t/blue/services/vault".into(), ..Default::default() };
            does(c, method, v1::WriteRequest { ops: vec![op] }).await
        }
        "Rib/Read" => {
            let prefixes = vec!["/t/blue/services/vault".into()];
            does(c, method, v1::ReadRequest { prefixes, at_least: None }).await
        }
        "Rib/Watchers" => {
            does(c, method, v1::WatchersRequest { prefix: "/t/blue/services/vault".into() }).await
        }
        "Signals/Report" => does(c, method, minutes(vault)).await,
        "Signals/ReportGateway" => does(c, method, v1::ReportGatewayRequest::default()).await,
        "Signals/Report, of calls" => does(c, method, calls()).await,
        "Imbalance/Report" => does(c, method, v1::ReportUsageRequest::from(minutes(vault))).await,
        "Imbalance/Report, of calls" => does(c, method, v1::ReportUsageRequest::from(calls())).await,
        "Imbalance/Read" => does(c, method, v1::ReadImbalanceRequest::default()).await,
        "Quota/Claim" => {
            let demand = v1::Demand { service: service(), ..Default::default() };
            does(c, method, v1::ClaimRequest { caller: 1, demands: vec![demand] }).await
        }
        "Registry/Register" => does(c, method, registration("blue/vault", "other")).await,
        "Registry/Renew" => {
            does(c, method, v1::RenewRequest { instances: vec![one()], ..Default::default() }).await
        }
        "Registry/Report" | "Registry/Report, by an operator" => {
            let state = v1::endpoint::State::Serving.into();
            let report = v1::StateReport { instance: Some(one()), state };
            let by_operator = row != method;
            does(c, method, v1::ReportRequest { reports: vec![report], by_operator }).await
        }
        "Registry/Drain" => does(c, method, drain("other", false)).await,
        "Registry/Drain, by an operator" => does(c, method, drain(vault, true)).await,
        "Registry/Deregister" => {
            let instances = vec![instance("blue/vault", "other")];
            does(c, method, v1::DeregisterRequest { instances, only_lost: false }).await
        }
        "Registry/GetShards" => does(c, method, v1::GetShardsRequest { service: service() }).await,
        "Registry/PutShards" => {
            does(c, method, v1::PutShardsRequest { service: service(), ..Default::default() }).await
        }
        "Registry/SplitShard" => {
            does(c, method, v1::SplitShardRequest { service: service(), ..Default::default() }).await
        }
        "Registry/MergeShards" => {
            does(c, method, v1::MergeShardsRequest { service: service(), ..Default::default() }).await
        }
        "Registry/MoveShard" => {
            does(c, method, v1::MoveShardRequest { service: service(), ..Default::default() }).await
        }
        "Registry/ListMoves" => does(c, method, v1::ListMovesRequest { service: service() }).await,
        "Registry/ReportShards" => {
            does(c, method, v1::ReportShardsRequest { instance: Some(one()), ready: Vec::new() }).await
        }
        "Registry/ReportShardLoad" => {
            let load = v1::ReportShardLoadRequest { instance: Some(one()), ..Default::default() };
            does(c, method, load).await
        }
        "Registry/ReadShardLoads" => does(c, method, v1::ReadShardLoadsRequest { service: service() }).await,
        "Registry/ProposeMoves" => {
            does(c, method, v1::ProposeMovesRequest { service: service(), ..Default::default() }).await
        }
        "Registry/ReadPlaintextCallers" => {
            does(c, method, v1::ReadPlaintextCallersRequest { service: service() }).await
        }
        "Workload/IssueWorkload" => {
            let csr = PrivateKey::generate().unwrap().signing_request().unwrap().into();
            does(c, method, v1::IssueWorkloadRequest { path: service(), csr }).await
        }
        "SpiffeWorkloadAPI/FetchX509SVID" => does(c, method, spiffe::X509svidRequest {}).await,
        "SpiffeWorkloadAPI/FetchX509Bundles" => does(c, method, spiffe::X509BundlesRequest {}).await,
        "SpiffeWorkloadAPI/FetchJWTSVID" => {
            let audience = vec!["vault".to_owned()];
            does(c, method, spiffe::JwtsvidRequest { audience, ..Default::default() }).await
        }
        "SpiffeWorkloadAPI/FetchJWTBundles" => does(c, method, spiffe::JwtBundlesRequest {}).await,
        "SpiffeWorkloadAPI/ValidateJWTSVID" => {
            does(c, method, spiffe::ValidateJwtsvidRequest::default()).await
        }
        row => panic!("this test makes no call for {row}"),
    }
}

#[test]
fn agent_methods_match_access_table_for_each_caller() {
    let documented = documented();
    let methods: BTreeSet<_> =
        documented.keys().map(|row| row.split(',').next().unwrap().to_owned()).collect();
    assert_eq!(methods, declared(), "each method of an agent has a row");
    let Some(machine) = Machine::start() else { return };
    // Positions in order: the refused drain of an operator must not depend on earlier drains.
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, user) in POSITIONS {
        let cells = machine.as_user(user, async |connection| {
            let mut cells = Vec::new();
            for row in documented.keys() {
                cells.push((row.clone(), try_row(&connection, row, &machine.vault).await));
            }
            cells
        });
        for (row, does) in cells {
            found.entry(row).or_default().push(if does { "yes" } else { "no" }.into());
        }
    }
    for (row, cells) in &documented {
        assert_eq!((row, &found[row]), (row, cells));
    }
    assert!(machine.is_called(), "honest work goes on");
}
