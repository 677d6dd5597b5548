//! Tests of what senders of reports can do to other tenants, and what the responses tell them.

use std::{path::Path, time::Duration};

use fairmesh_model::{
    Authorization, AuthorizationRule, CallerMatch, DefaultAuthorization, MAX_INCOMPLETE_SERVICES, Policy,
    Protocol, Record, RecordKey, Traffic, TrafficPlanner, access::AccessRole,
};
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use super::{
    machines::is_refusal,
    members::{TestMember, join, own, start_strict},
    roles::{apply, bind, binding},
    support::{BOUND, TestControl, policy_key, put, service, service_key},
};

const NO_ROOM: &str = "no room";

/// A report without rows, of a process in the region `eu`.
fn report(reporter: u64) -> v1::ReportSignalsRequest {
    let sender = v1::SignalSender { reporter, interval_ms: 20_000, regions: Vec::new() };
    v1::ReportSignalsRequest { sender: Some(sender), ..Default::default() }
}

fn incomplete(reporter: u64, names: impl IntoIterator<Item = String>) -> v1::ReportSignalsRequest {
    v1::ReportSignalsRequest { incomplete: names.into_iter().collect(), ..report(reporter) }
}

/// Calls of a caller in the region `eu`.
fn calls_to(service: &str) -> v1::CallRates {
    v1::CallRates {
        service: service.into(),
        from: "eu".into(),
        to: "eu".into(),
        offered: 1_000,
        attempts: 1_000,
        answered: 1_000,
        ..Default::default()
    }
}

/// A policy that callers of the tenant red may call, if `is_callable`.
fn policy(is_callable: bool) -> Policy {
    let rule = AuthorizationRule::allowing("red".parse().unwrap(), vec![CallerMatch::new("red/*").unwrap()]);
    let rules = Authorization { rules: vec![rule], ..Authorization::default() };
    Policy { authorization: is_callable.then(|| Box::new(rules)), ..Policy::default() }
}

fn put_policy(name: &str, policy: Policy) -> v1::Op {
    put(policy_key(name), record_encoding::encode(&Record::Policy(policy)).to_vec())
}

/// Starts a control plane that allows nothing by default, with a service of each tenant that a planner plans. Callers of
/// the tenant red may call `blue/vault` if `is_callable`.
async fn start(folder: &Path, is_callable: bool) -> TestControl {
    let control = start_strict(folder).await;
    let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
    let planned = |policy| Policy { traffic: Some(Box::new(traffic.clone())), ..policy };
    let default = record_encoding::encode(&Record::DefaultAuthorization(DefaultAuthorization::Deny)).to_vec();
    let ops = vec![
        put(RecordKey::DefaultAuthorization.to_string(), default),
        put(service_key("red/x"), service(Protocol::Http1)),
        put(service_key("blue/vault"), service(Protocol::Http1)),
        put_policy("red/x", planned(policy(false))),
        put_policy("blue/vault", planned(policy(is_callable))),
    ];
    apply(&own(&control).await, ops).await.unwrap();
    control
}

/// Why the planner plans no tables of a service.
async fn refusal(control: &TestControl, service: &str) -> String {
    let request = v1::TrafficStatusRequest { service: service.into() };
    let status = own(control).await.traffic_planner().status(request).await.unwrap().into_inner();
    status.services.into_iter().next().map(|one| one.refusal).unwrap_or_default()
}

async fn wait_for_refusal(control: &TestControl, service: &str, part: &str) {
    let refused = async {
        while !refusal(control, service).await.contains(part) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(BOUND, refused).await.unwrap_or_else(|_| panic!("{service} is not refused for '{part}'"));
}

#[tokio::test]
async fn users_without_calls_or_servers_send_no_reports_and_claim_no_limits() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), true).await;
    let agent = join(&control, "red-1", &["red"], "eu").await;
    for (name, role) in [
        ("nobody", None),
        ("viewer", Some(AccessRole::Viewer)),
        ("authorizer", Some(AccessRole::Authorizer)),
        ("operator", Some(AccessRole::Operator)),
    ] {
        let subject = format!("fairmesh/operator/red-1.{name}");
        if let Some(role) = role {
            bind(&control, name, binding(role, &["red"], &[], &subject)).await;
        }
        let user = agent.issue(&control, &subject).await.unwrap().connect(&control).await;
        let mut named = incomplete(1, ["red/x".to_owned()]);
        for report in [report(1), named.clone(), v1::ReportSignalsRequest::default()] {
            let refused = user.signals().report(report).await.expect_err(name);
            assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
        }
        named.left_out = u32::MAX;
        let refused = user.imbalance().report(v1::ReportUsageRequest::from(named)).await.expect_err(name);
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused}");
        let demand = v1::Demand { service: "red/x".into(), ..Default::default() };
        let claim = v1::ClaimRequest { caller: 1, demands: vec![demand] };
        assert!(is_refusal(&user.quota().claim(claim).await.expect_err(name)), "{name}");
    }
    let registrar = "fairmesh/operator/red-1.registrar";
    bind(&control, "registrar", binding(AccessRole::Registrar, &[], &["red/x"], registrar)).await;
    let other = join(&control, "rib-1", &[], "eu").await;
    for sender in [
        agent.issue(&control, registrar).await.unwrap(),
        agent.issue(&control, "red/x").await.unwrap(),
        agent.issue(&control, "fairmesh/proxy/red-1.web").await.unwrap(),
        other.issue(&control, "fairmesh/replica/rib-1.eu").await.unwrap(),
        agent,
    ] {
        sender.connect(&control).await.signals().report(report(1)).await.unwrap();
    }
    control.stop().await;
}

#[tokio::test]
async fn reports_of_one_tenant_stop_planning_of_no_other_tenant() {
    for is_callable in [false, true] {
        check_planning_of_other_tenant(is_callable).await;
    }
}

fn invented() -> impl Iterator<Item = String> {
    (0..MAX_INCOMPLETE_SERVICES).map(|n| format!("red/s{n}"))
}

/// Reports, in all forms, as many incomplete services as a message can name, and one of another tenant.
async fn report_incomplete_of_others(sender: &Connection) {
    sender.signals().report(incomplete(1, invented())).await.unwrap();
    sender.signals().report(incomplete(2, ["blue/vault".to_owned()])).await.unwrap();
    let former = v1::ReportUsageRequest::from(incomplete(3, invented()));
    sender.imbalance().report(former).await.unwrap();
}

async fn check_planning_of_other_tenant(is_callable: bool) {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), is_callable).await;
    let agent = join(&control, "red-1", &["red"], "eu").await;
    // A role of a viewer changes nothing.
    bind(&control, "viewer", binding(AccessRole::Viewer, &["blue"], &[], "fairmesh/agent/red-1")).await;
    for sender in [&agent, &agent.issue(&control, "red/x").await.unwrap()] {
        report_incomplete_of_others(&sender.connect(&control).await).await;
    }
    // A row of its calls changes nothing either.
    let calls = if is_callable { vec![calls_to("blue/vault")] } else { Vec::new() };
    let named = v1::ReportSignalsRequest { calls, ..incomplete(5, ["blue/vault".to_owned()]) };
    agent.connect(&control).await.signals().report(named).await.unwrap();
    // The tenant's own service may be incomplete, and is not planned.
    let honest = incomplete(4, invented().take(MAX_INCOMPLETE_SERVICES - 1).chain(["red/x".to_owned()]));
    agent.connect(&control).await.signals().report(honest).await.unwrap();
    wait_for_refusal(&control, "red/x", NO_ROOM).await;
    let other = refusal(&control, "blue/vault").await;
    assert!(!other.contains(NO_ROOM), "{other}");
    report_full_list_of_replica(&control).await;
    wait_for_refusal(&control, "blue/vault", NO_ROOM).await;
    control.stop().await;
}

/// A replica adds up reports of all tenants: its full list stands for any service.
async fn report_full_list_of_replica(control: &TestControl) {
    let other = join(control, "rib-1", &[], "eu").await;
    let relay = other.issue(control, "fairmesh/replica/rib-1.eu").await.unwrap().connect(control).await;
    relay.signals().report(incomplete(1, invented())).await.unwrap();
}

#[tokio::test]
async fn forged_number_of_rows_left_out_is_capped() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), false).await;
    let agent = join(&control, "red-1", &["red"], "eu").await.connect(&control).await;
    let counts = v1::CountReport { reporter: 1, number: 1, left_out: u64::MAX, ..Default::default() };
    let forged = v1::ReportSignalsRequest { counts: Some(counts), ..Default::default() };
    agent.signals().report(forged).await.unwrap();
    agent.signals().report(v1::ReportSignalsRequest { left_out: u32::MAX, ..report(1) }).await.unwrap();
    let operator = own(&control).await;
    let view = operator.admin().read_calls(v1::ReadCallsRequest::default()).await.unwrap().into_inner();
    assert_eq!(view.left_out, 4_096);
    let calls = operator.traffic_planner().calls(v1::TrafficCallsRequest::default()).await.unwrap();
    assert_eq!(calls.into_inner().left_out, 5_120);
    control.stop().await;
}

async fn watched(control: &TestControl, sender: &TestMember) -> Vec<String> {
    sender.connect(control).await.signals().report(report(1)).await.unwrap().into_inner().watched
}

#[tokio::test]
async fn response_to_report_names_only_watched_services_that_sender_may_see() {
    for is_callable in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let control = start(folder.path(), is_callable).await;
        let operator = own(&control).await;
        // Planned services need no look.
        let looked = ["blue/open", "blue/y", "red/y"];
        let mut ops: Vec<_> = looked.map(|name| put(service_key(name), service(Protocol::Http1))).into();
        ops.push(put_policy("blue/open", policy(is_callable)));
        apply(&operator, ops).await.unwrap();
        for name in looked {
            let request = v1::TrafficCallsRequest { service: name.into(), ..Default::default() };
            operator.traffic_planner().calls(request).await.unwrap();
        }
        let agent = join(&control, "red-1", &["red"], "eu").await;
        let program = agent.issue(&control, "red/x").await.unwrap();
        let expected: &[&str] = if is_callable { &["blue/open", "red/y"] } else { &["red/y"] };
        for sender in [&agent, &program] {
            assert_eq!(watched(&control, sender).await, expected);
        }
        let other = join(&control, "rib-1", &[], "eu").await;
        let relay = other.issue(&control, "fairmesh/replica/rib-1.eu").await.unwrap();
        assert_eq!(watched(&control, &relay).await, ["blue/open", "blue/y", "red/y"]);
        control.stop().await;
    }
}

/// Reads everything that shows callers, load or plans of a service.
async fn read_internals(on: &Connection, name: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let service = || name.to_owned();
    let calls = v1::TrafficCallsRequest { service: service(), ..Default::default() };
    let waste = v1::ReadImbalanceRequest { service: service(), ..Default::default() };
    let plan = v1::ProposeMovesRequest { service: service(), ..Default::default() };
    let callers = v1::ReadPlaintextCallersRequest { service: service() };
    let loads = v1::ReadShardLoadsRequest { service: service() };
    let status = v1::TrafficStatusRequest { service: service() };
    let history = v1::ReadCallsRequest { service: service(), ..Default::default() };
    vec![
        ("calls", on.traffic_planner().calls(calls).await.map(drop)),
        ("status", on.traffic_planner().status(status).await.map(drop)),
        ("plaintext callers", on.registry().read_plaintext_callers(callers).await.map(drop)),
        ("moves", on.registry().list_moves(v1::ListMovesRequest { service: service() }).await.map(drop)),
        ("loads", on.registry().read_shard_loads(loads).await.map(drop)),
        ("plan of moves", on.registry().propose_moves(plan).await.map(drop)),
        ("imbalance", on.imbalance().read(waste).await.map(drop)),
        ("history of calls", on.admin().read_calls(history).await.map(drop)),
    ]
}

/// Words of the refusal of a service that the caller may read.
const LACKS: &str = ", and lacks the role ";

#[tokio::test]
async fn caller_of_service_sees_neither_its_other_callers_nor_its_load() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), true).await;
    let agent = join(&control, "red-1", &["red"], "eu").await;
    let program = agent.issue(&control, "red/x").await.unwrap();
    for caller in [&agent, &program] {
        let caller = caller.connect(&control).await;
        let read = v1::ReadRequest { prefixes: vec![policy_key("blue/vault")], at_least: None };
        caller.rib().read(read).await.expect("a caller reads the policy");
        for (what, result) in read_internals(&caller, "blue/vault").await {
            let refused = result.expect_err(what);
            assert_eq!(refused.code(), Code::PermissionDenied, "{what}: {refused}");
            assert!(refused.message().contains(LACKS), "{what}: {refused}");
        }
        for (what, result) in read_internals(&caller, "red/x").await {
            // The service may have no shards, for example.
            let problem = result.err().map(|status| status.message().to_owned()).unwrap_or_default();
            assert!(
                ![LACKS, "may use; a role"].iter().any(|words| problem.contains(words)),
                "{what}: {problem}"
            );
        }
    }
    control.stop().await;
}
