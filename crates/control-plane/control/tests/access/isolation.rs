//! Tests the isolation of two tenants of one control plane: an agent of one tenant cannot read, write or name
//! anything of the other.

use std::{collections::BTreeSet, fs, path::Path};

use fairmesh_model::{
    DefaultAuthorization, Endpoint, Identity, Location, Protocol, Record, RecordKey, RecordKind, Role,
    ShardId, ShardMove, ShardPart, access::AccessRole,
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{self, watch_request, watch_response},
};
use tokio::time::timeout;
use tonic::Status;

use super::{
    machines::{is_refusal, registration},
    members::{TestMember, join, own, start_strict},
    roles::{bind, binding},
    support::{BOUND, TestControl, named, policy, policy_key, put, service, service_key},
};

/// Methods that every member may call, because they reveal nothing about tenants or verify their caller
/// themselves; methods for the control plane's own user; and one that only agents serve.
const OPEN: [&str; 9] = [
    "Rib/Hello",
    "Identity/Join",
    "Identity/Issue",
    "Admin/DescribeCaller",
    "Authority/DescribeAuthority",
    "Authority/CreateToken",
    "Authority/RotateAuthority",
    "Authority/RetireRoot",
    "Workload/IssueWorkload",
];

fn declared() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto/fairmesh/v1");
    let mut methods = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut service = "";
        for line in text.lines() {
            let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(name)) => drop(methods.insert(format!("{service}/{name}"))),
                _ => {}
            }
        }
    }
    methods
}

/// The keys of a service's records, one of each kind.
fn keys(name: &str) -> Vec<RecordKey> {
    let (service, eu) = (named(name), "eu".parse::<fairmesh_model::Region>().unwrap());
    let instance = || "one".parse::<fairmesh_model::InstanceId>().unwrap();
    vec![
        RecordKey::Service(service.clone()),
        RecordKey::Endpoint(service.clone(), eu.clone(), instance()),
        RecordKey::Health(service.clone(), eu.clone(), instance()),
        RecordKey::Policy(service.clone()),
        RecordKey::Workload(service.clone()),
        RecordKey::ShardManifest(service.clone(), ShardPart::Ranges),
        RecordKey::ShardChunk(service.clone(), ShardPart::Ranges, fairmesh_model::ChunkHash(1)),
        RecordKey::Move(service.clone(), ShardId(1)),
        RecordKey::RegionTable(service.clone(), eu),
        RecordKey::History(RecordKind::Policy, service, 1),
    ]
}

/// All prefixes of a key.
fn prefixes(key: &RecordKey) -> Vec<String> {
    let text = key.to_string();
    let folders = text.match_indices('/').map(|(at, _)| text[..=at].to_owned());
    folders.chain([text.clone()]).collect()
}

macro_rules! call {
    ($results:ident, $connection:ident, $client:ident.$method:ident($name:literal, $request:expr)) => {
        $results.push(($name, $connection.$client().$method($request).await.map(drop)));
    };
}

/// Calls every method with a request that names a service, or objects of all tenants.
#[allow(clippy::too_many_lines, clippy::cognitive_complexity, reason = "one call per method")]
async fn call_all(on: &Connection, name: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let mut all = Vec::new();
    let one = || v1::InstanceRef { service: name.into(), instance: "one".into(), incarnation: 0 };
    let ops = |key: String| vec![put(key, service(Protocol::Http1))];
    let kind = || "policies".to_owned();
    let shard_move = ShardMove {
        shard: ShardId(1),
        role: Role::new("primary").unwrap(),
        from: Some("one".parse().unwrap()),
        to: Some("two".parse().unwrap()),
    };
    let minutes = v1::InstanceUsage { service: name.into(), instance: "one".into(), ..Default::default() };
    let demand = v1::Demand { service: name.into(), ..Default::default() };
    let report = v1::StateReport { instance: Some(one()), state: v1::endpoint::State::Serving.into() };
    let region = || "eu".to_owned();
    call!(all, on, rib.write("Rib/Write", v1::WriteRequest { ops: ops(service_key(name)) }));
    let read = v1::ReadRequest { prefixes: vec![service_key(name)], at_least: None };
    call!(all, on, rib.read("Rib/Read", read));
    call!(all, on, rib.watchers("Rib/Watchers", v1::WatchersRequest { prefix: service_key(name) }));
    let apply =
        v1::ApplyRequest { ops: ops(service_key(name)), dry_run: true, ..v1::ApplyRequest::default() };
    call!(all, on, admin.apply("Admin/Apply", apply));
    let history = v1::GetHistoryRequest { kind: kind(), service: name.into() };
    call!(all, on, admin.get_history("Admin/GetHistory", history));
    let rollback =
        v1::RollbackRequest { kind: kind(), service: name.into(), ..v1::RollbackRequest::default() };
    call!(all, on, admin.rollback("Admin/Rollback", rollback));
    call!(all, on, admin.split_store("Admin/SplitStore", v1::SplitStoreRequest::default()));
    call!(all, on, admin.read_audit("Admin/ReadAudit", v1::ReadAuditRequest::default()));
    call!(all, on, admin.list_controllers("Admin/ListControllers", v1::ListControllersRequest {}));
    let calls = v1::ReadCallsRequest { service: name.into(), ..Default::default() };
    call!(all, on, admin.read_calls("Admin/ReadCalls", calls));
    let cost = v1::ReadCostRequest { service: name.into(), ..Default::default() };
    call!(all, on, admin.read_cost("Admin/ReadCost", cost));
    let traces = v1::ReadTracesRequest { service: name.into(), ..Default::default() };
    call!(all, on, admin.read_traces("Admin/ReadTraces", traces));
    call!(all, on, admin.read_probes("Admin/ReadProbes", v1::ReadProbesRequest {}));
    call!(all, on, admin.read_gateway("Admin/ReadGateway", v1::ReadGatewayRequest {}));
    let campaign = v1::CampaignRequest { region: region(), name: "test".into() };
    call!(all, on, checker.campaign("Checker/Campaign", campaign));
    let judge = v1::JudgeRequest { region: region(), ..Default::default() };
    call!(all, on, checker.judge("Checker/Judge", judge));
    let distances = v1::ReportDistancesRequest { region: region(), ..Default::default() };
    call!(all, on, checker.report_distances("Checker/ReportDistances", distances));
    let probes = v1::ReportProbesRequest { region: region(), ..Default::default() };
    call!(all, on, checker.report_probes("Checker/ReportProbes", probes));
    let usage = v1::ReportUsageRequest { usages: vec![minutes.clone()], traffic: None };
    call!(all, on, imbalance.report("Imbalance/Report", usage));
    let usage = v1::ReportSignalsRequest { usages: vec![minutes], ..Default::default() };
    call!(all, on, signals.report("Signals/Report", usage));
    let load = v1::ReportGatewayRequest::default();
    call!(all, on, signals.report_gateway("Signals/ReportGateway", load));
    let waste = v1::ReadImbalanceRequest { service: name.into(), ..Default::default() };
    call!(all, on, imbalance.read("Imbalance/Read", waste));
    call!(all, on, quota.claim("Quota/Claim", v1::ClaimRequest { caller: 1, demands: vec![demand] }));
    call!(all, on, registry.register("Registry/Register", registration(name, "one")));
    call!(
        all,
        on,
        registry.renew("Registry/Renew", v1::RenewRequest { instances: vec![one()], ..Default::default() })
    );
    call!(
        all,
        on,
        registry.report("Registry/Report", v1::ReportRequest { reports: vec![report], by_operator: true })
    );
    let drain = v1::DrainRequest { instances: vec![one()], deadline_ms: 1, by_operator: false };
    call!(all, on, registry.drain("Registry/Drain", drain));
    let gone = v1::DeregisterRequest { instances: vec![one()], only_lost: false };
    call!(all, on, registry.deregister("Registry/Deregister", gone));
    call!(all, on, registry.get_shards("Registry/GetShards", v1::GetShardsRequest { service: name.into() }));
    let map = v1::PutShardsRequest { service: name.into(), map: Some(v1::ShardMap::default()) };
    call!(all, on, registry.put_shards("Registry/PutShards", map));
    let split = v1::SplitShardRequest { service: name.into(), ..Default::default() };
    call!(all, on, registry.split_shard("Registry/SplitShard", split));
    let merge = v1::MergeShardsRequest { service: name.into(), ..Default::default() };
    call!(all, on, registry.merge_shards("Registry/MergeShards", merge));
    let moved = v1::MoveShardRequest { service: name.into(), r#move: Some(shard_move.into()) };
    call!(all, on, registry.move_shard("Registry/MoveShard", moved));
    call!(all, on, registry.list_moves("Registry/ListMoves", v1::ListMovesRequest { service: name.into() }));
    let ready = v1::ReportShardsRequest { instance: Some(one()), ready: Vec::new() };
    call!(all, on, registry.report_shards("Registry/ReportShards", ready));
    let load = v1::ReportShardLoadRequest { instance: Some(one()), ..Default::default() };
    call!(all, on, registry.report_shard_load("Registry/ReportShardLoad", load));
    let loads = v1::ReadShardLoadsRequest { service: name.into() };
    call!(all, on, registry.read_shard_loads("Registry/ReadShardLoads", loads));
    let callers = v1::ReadPlaintextCallersRequest { service: name.into() };
    call!(all, on, registry.read_plaintext_callers("Registry/ReadPlaintextCallers", callers));
    let plan = v1::ProposeMovesRequest { service: name.into(), ..Default::default() };
    call!(all, on, registry.propose_moves("Registry/ProposeMoves", plan));
    let status = v1::TrafficStatusRequest { service: name.into() };
    call!(all, on, traffic_planner.status("TrafficPlanner/Status", status));
    let forecast = v1::ForecastDrainRequest { region: region() };
    call!(all, on, traffic_planner.forecast_drain("TrafficPlanner/ForecastDrain", forecast));
    let drain = v1::DrainRegionRequest { region: region(), ..Default::default() };
    call!(all, on, traffic_planner.drain_region("TrafficPlanner/DrainRegion", drain));
    call!(all, on, traffic_planner.drains("TrafficPlanner/Drains", v1::DrainsRequest {}));
    let calls = v1::TrafficCallsRequest { service: name.into(), caller: String::new() };
    call!(all, on, traffic_planner.calls("TrafficPlanner/Calls", calls));
    let graph = v1::TrafficGraphRequest { service: name.into() };
    call!(all, on, traffic_planner.graph("TrafficPlanner/Graph", graph));
    call!(all, on, traffic_planner.what_if("TrafficPlanner/WhatIf", v1::WhatIfRequest::default()));
    all
}

/// Writes the records of a tenant's service.
async fn fill(connection: &Connection, name: &str) {
    let location = Location::in_region("eu".parse().unwrap());
    let v1::Registration { endpoint, .. } = registration(name, "one").registrations.remove(0);
    let endpoint = Endpoint { location, ..Endpoint::try_from(endpoint.unwrap()).unwrap() };
    let mut ops = vec![put(service_key(name), service(Protocol::Http1)), put(policy_key(name), policy(5))];
    let key = RecordKey::Endpoint(named(name), "eu".parse().unwrap(), endpoint.instance.clone()).to_string();
    ops.push(put(key, record_encoding::encode(&Record::Endpoint(endpoint)).to_vec()));
    connection.rib().write(v1::WriteRequest { ops }).await.unwrap();
}

#[tokio::test]
async fn no_grpc_method_reads_or_changes_objects_of_other_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let operator = own(&control).await;
    let default = Record::DefaultAuthorization(DefaultAuthorization::Deny);
    let op = put(RecordKey::DefaultAuthorization.to_string(), record_encoding::encode(&default).to_vec());
    operator.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap();
    fill(&operator, "bank/vault").await;
    fill(&operator, "shop/cart").await;
    let agent = join(&control, "web-1", &["shop"], "us").await;
    let alice = agent.issue(&control, "fairmesh/operator/web-1.alice").await.unwrap();
    let subject = "fairmesh/operator/web-1.alice";
    bind(&control, "alice", binding(AccessRole::Operator, &["shop"], &[], subject)).await;
    let cart = agent.issue(&control, "shop/cart").await.unwrap();
    let proxy = agent.issue(&control, "fairmesh/proxy/web-1.proxy").await.unwrap();
    let revision = number(&operator).await;
    for member in [&agent, &alice, &cart, &proxy] {
        let connection = member.connect(&control).await;
        let there = call_all(&connection, "bank/vault").await;
        let absent = call_all(&connection, "bank/absent").await;
        let called: BTreeSet<_> = there.iter().map(|(method, _)| (*method).to_owned()).collect();
        let expected: BTreeSet<_> =
            declared().into_iter().filter(|method| !OPEN.contains(&method.as_str())).collect();
        assert_eq!(called, expected, "each method is called");
        for ((method, there), (_, absent)) in there.into_iter().zip(absent) {
            let there = there.expect_err(method);
            assert!(is_refusal(&there), "{method}: {there}");
            let words = there.message().replace("vault", "absent");
            assert_eq!(words, absent.expect_err(method).message(), "{method} tells whether it exists");
        }
        read_nothing(&connection).await;
        watch_nothing(&connection).await;
    }
    assert_eq!(number(&operator).await, revision, "nothing was written");
    for (member, may) in [(&agent, true), (&alice, false), (&cart, false), (&proxy, false)] {
        assert_eq!(reads_record_of_agent(member, &control).await, may);
    }
    // The agent reads everything of its own tenant.
    let connection = agent.connect(&control).await;
    for key in keys("shop/cart") {
        let read = v1::ReadRequest { prefixes: vec![key.to_string()], at_least: None };
        connection.rib().read(read).await.unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }
    control.stop().await;
}

async fn number(operator: &Connection) -> u64 {
    let read = v1::ReadRequest { prefixes: vec!["/g/authorization".into()], at_least: None };
    let at = operator.rib().read(read).await.unwrap().into_inner().at.unwrap();
    // The control plane writes measurements and roots on its own, outside of tenants.
    at.numbers.values().copied().max().unwrap_or_default()
}

/// Whether a member may read the record of the agent of its machine, which has the region for which the agent reports.
async fn reads_record_of_agent(member: &TestMember, control: &TestControl) -> bool {
    let read = v1::ReadRequest { prefixes: vec!["/g/identity/agents/web-1".into()], at_least: None };
    member.connect(control).await.rib().read(read).await.is_ok()
}

async fn read_nothing(connection: &Connection) {
    for (there, absent) in keys("bank/vault").iter().zip(keys("bank/absent")) {
        for (there, absent) in prefixes(there).into_iter().zip(prefixes(&absent)) {
            let read = |prefix: &str| v1::ReadRequest { prefixes: vec![prefix.into()], at_least: None };
            let refused = connection.rib().read(read(&there)).await.expect_err(&there);
            let words = refused.message().replace("vault", "absent");
            assert_eq!(words, connection.rib().read(read(&absent)).await.unwrap_err().message());
        }
    }
    for prefix in ["/g/", "/g/identity/", "/g/roles/", "/g/identity/agents/web-2"] {
        let read = v1::ReadRequest { prefixes: vec![prefix.into()], at_least: None };
        assert!(connection.rib().read(read).await.is_err(), "{prefix}");
    }
}

async fn watch_nothing(connection: &Connection) {
    for key in keys("bank/vault") {
        for prefix in prefixes(&key) {
            let mut watch = connection.watch().await.unwrap();
            let subscribe = v1::Subscribe { prefix: prefix.clone(), ..Default::default() };
            watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
            let first = timeout(BOUND, watch.next()).await.unwrap().expect("a response");
            let Some(watch_response::Kind::Refused(refused)) = first.kind else {
                panic!("{prefix}: {first:?}")
            };
            assert!(refused.reason.contains("there is nothing at"), "{refused:?}");
        }
    }
}

#[tokio::test]
async fn agent_may_follow_callable_services_only_while_permitted() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let operator = own(&control).await;
    fill(&operator, "bank/vault").await;
    let agent = join(&control, "web-1", &["shop"], "eu").await;
    let mut watch = agent.connect(&control).await.watch().await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/t/bank/endpoints/vault/".into(), ..Default::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    let first = timeout(BOUND, watch.next()).await.unwrap().expect("a response");
    assert!(
        matches!(first.kind, Some(watch_response::Kind::Snapshot(_))),
        "by default all may call: {first:?}"
    );
    let default = Record::DefaultAuthorization(DefaultAuthorization::Deny);
    let op = put(RecordKey::DefaultAuthorization.to_string(), record_encoding::encode(&default).to_vec());
    operator.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap();
    let refused = async {
        loop {
            let response = watch.next().await.expect("the watch goes on");
            if let Some(watch_response::Kind::Refused(refused)) = response.kind {
                return refused;
            }
        }
    };
    let refused = timeout(BOUND, refused).await.expect("the subscription ends");
    assert_eq!(refused.prefix, "/t/bank/endpoints/vault/");
    let who = Identity::Spiffe("spiffe://prod/fairmesh/agent/web-1".parse().unwrap()).to_string();
    assert!(refused.reason.contains(&who), "{refused:?}");
    control.stop().await;
}
