//! Tests which rights agents, and programs that they vouch for, have to act for others.

use std::time::Duration;

use fairmesh_model::{EndpointState, Identity, Policy, RateLimit, Record, RecordKey, Scope};
use fairmesh_wire::{handshake::Connection, record_encoding, set_on_behalf_of, v1};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{
    members::{TestMember, join, join_program, join_with, own, start_strict, token_for},
    roles::apply,
    support::{BOUND, TestControl, policy_key, put},
};

pub(crate) fn registration(service: &str, instance: &str) -> v1::RegisterRequest {
    let location = v1::Location { region: "eu".into(), ..Default::default() };
    let endpoint = v1::Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:80".into(),
        location: Some(location),
        state: v1::endpoint::State::Serving.into(),
        mtls: true,
        ..Default::default()
    };
    let registration =
        v1::Registration { service: service.into(), endpoint: Some(endpoint), declaration: None };
    v1::RegisterRequest { registrations: vec![registration] }
}

fn instance(service: &str, instance: &str) -> v1::InstanceRef {
    v1::InstanceRef { service: service.into(), instance: instance.into(), incarnation: 0 }
}

/// Makes all calls by which a server acts for an instance.
async fn act(connection: &Connection, service: &str, name: &str) -> Vec<(&'static str, Result<(), Status>)> {
    let mut registry = connection.registry();
    let one = || instance(service, name);
    let report = v1::StateReport { instance: Some(one()), state: v1::endpoint::State::Draining.into() };
    let report = v1::ReportRequest { reports: vec![report], by_operator: false };
    let drain = v1::DrainRequest { instances: vec![one()], deadline_ms: 1, by_operator: false };
    let gone = v1::DeregisterRequest { instances: vec![one()], only_lost: false };
    let load = v1::ReportShardLoadRequest {
        instance: Some(one()),
        sequence: 1,
        period_ms: 1000,
        ..Default::default()
    };
    let usage = v1::InstanceUsage {
        service: service.into(),
        instance: name.into(),
        location: Some(v1::Location { region: "eu".into(), ..Default::default() }),
        minutes: Vec::new(),
    };
    vec![
        ("register", registry.register(registration(service, name)).await.map(drop)),
        (
            "renew",
            registry.renew(v1::RenewRequest { instances: vec![one()], ..Default::default() }).await.map(drop),
        ),
        ("report", registry.report(report).await.map(drop)),
        ("drain", registry.drain(drain).await.map(drop)),
        (
            "report_shards",
            registry
                .report_shards(v1::ReportShardsRequest { instance: Some(one()), ready: Vec::new() })
                .await
                .map(drop),
        ),
        ("report_shard_load", registry.report_shard_load(load).await.map(drop)),
        (
            "report_usage",
            connection
                .signals()
                .report(v1::ReportSignalsRequest { usages: vec![usage], ..Default::default() })
                .await
                .map(drop),
        ),
        ("deregister", registry.deregister(gone).await.map(drop)),
    ]
}

#[tokio::test]
async fn agents_and_servers_may_act_only_for_their_own_instances() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let (one, two) = (
        join(&control, "web-1", &["shop"], "eu").await,
        join(&control, "web-2", &["shop", "bank"], "eu").await,
    );
    let (own_server, other_server) = (
        two.issue(&control, "shop/cart").await.unwrap().connect(&control).await,
        two.issue(&control, "bank/vault").await.unwrap().connect(&control).await,
    );
    let (one, two) = (one.connect(&control).await, two.connect(&control).await);
    one.registry().register(registration("shop/cart", "cart-0")).await.unwrap();
    let operator = own(&control).await;
    for (caller, who) in
        [(&two, "the agent of another machine"), (&other_server, "a server of another service")]
    {
        for (call, result) in act(caller, "shop/cart", "cart-0").await {
            let refused = result.expect_err(&format!("{who} may {call}"));
            assert!(is_refusal(&refused), "{who}, {call}: {refused}");
        }
    }
    for (call, result) in act(&one, "bank/vault", "vault-0").await {
        assert!(is_refusal(&result.expect_err(call)), "{call} for a tenant of others");
    }
    // None of the refused calls had an effect.
    let prefixes = vec!["/t/shop/endpoints/".into(), "/t/bank/".into()];
    let read = v1::ReadRequest { prefixes, at_least: None };
    let entries = operator.rib().read(read).await.unwrap().into_inner().entries;
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let key = RecordKey::parse(&entry.key).unwrap();
    let Record::Endpoint(endpoint) = record_encoding::decode(&key, &entry.value).unwrap() else {
        panic!("{key}")
    };
    assert_eq!(endpoint.state, EndpointState::Serving);
    assert_eq!(endpoint.labels["fairmesh.agent"], "web-1");
    // The service itself, its agent, and operators may act for the instance.
    for caller in [&own_server, &one, &operator] {
        one.registry().register(registration("shop/cart", "cart-0")).await.unwrap();
        for (call, result) in act(caller, "shop/cart", "cart-0").await {
            // Instances without a shard map have nothing to report about one.
            assert!(
                !matches!(&result, Err(status) if status.message().contains("fairmesh/")),
                "{call}: {result:?}"
            );
        }
    }
    control.stop().await;
}

#[tokio::test]
async fn agent_has_no_operator_rights_for_services_it_registered() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let one = join(&control, "web-1", &["shop"], "eu").await.connect(&control).await;
    one.registry().register(registration("shop/cart", "cart-0")).await.unwrap();
    let operator = own(&control).await;
    let drain = v1::DrainRequest {
        instances: vec![instance("shop/cart", "cart-0")],
        deadline_ms: 1,
        by_operator: true,
    };
    assert_eq!(one.registry().drain(drain.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    let serving = v1::endpoint::State::Serving.into();
    let report = v1::StateReport { instance: Some(instance("shop/cart", "cart-0")), state: serving };
    let report = v1::ReportRequest { reports: vec![report], by_operator: true };
    assert_eq!(one.registry().report(report.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    operator.registry().drain(drain).await.unwrap();
    operator.registry().report(report).await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn unsigned_agent_call_for_other_users_program_lacks_agents_rights() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let beside = own(&control).await;
    let register = async |uid: u32| {
        let mut request = tonic::Request::new(registration("shop/cart", "cart-0"));
        set_on_behalf_of(&mut request, &Identity::Local { uid });
        beside.registry().register(request).await
    };
    assert!(is_refusal(&register(54_001).await.unwrap_err()));
    register(rustix::process::geteuid().as_raw()).await.unwrap();
    control.stop().await;
}

/// Whether a status is a refusal. Objects that the caller may not read are reported as not found; readable
/// ones may be refused too.
pub(crate) fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::NotFound | Code::PermissionDenied)
}

#[tokio::test]
async fn lost_instance_may_be_registered_by_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let one = join(&control, "web-1", &[], "eu").await.connect(&control).await;
    let two = join(&control, "web-2", &[], "eu").await.connect(&control).await;
    let leased = |lease_ms| {
        let mut request = registration("shop/cart", "cart-0");
        request.registrations[0].endpoint.as_mut().unwrap().lease_ms = lease_ms;
        request
    };
    one.registry().register(leased(1000)).await.unwrap();
    assert_eq!(two.registry().register(leased(1000)).await.unwrap_err().code(), Code::NotFound);
    let moved = async {
        while two.registry().register(leased(60_000)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(BOUND, moved).await.expect("the lease expires");
    let renewal = v1::RenewRequest { instances: vec![instance("shop/cart", "cart-0")], ..Default::default() };
    assert_eq!(one.registry().renew(renewal).await.unwrap_err().code(), Code::NotFound);
    control.stop().await;
}

async fn campaign(member: &TestMember, control: &TestControl, region: &str) -> Result<u64, Status> {
    let request = v1::CampaignRequest { region: region.into(), name: "test".into() };
    let mut leadership = member.connect(control).await.checker().campaign(request).await?.into_inner();
    let first = timeout(BOUND, leadership.message()).await.expect("elected")?;
    Ok(first.unwrap().term)
}

#[tokio::test]
async fn agent_is_elected_only_in_its_own_region() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let restricted = join(&control, "web-2", &["shop"], "us").await;
    let service = agent.issue(&control, "shop/cart").await.unwrap();
    let proxy = agent.issue(&control, "fairmesh/proxy/web-1.proxy").await.unwrap();
    let term = campaign(&agent, &control, "eu").await.unwrap();
    for (member, region) in [(&agent, "us"), (&restricted, "us"), (&service, "eu"), (&proxy, "eu")] {
        assert_eq!(campaign(member, &control, region).await.unwrap_err().code(), Code::PermissionDenied);
    }
    let request = |term| v1::JudgeRequest { region: "eu".into(), term, judgements: Vec::new() };
    let refused = restricted.connect(&control).await.checker().judge(request(term)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let request = v1::ReportDistancesRequest { region: "eu".into(), term, distances: Vec::new() };
    let refused = service.connect(&control).await.checker().report_distances(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    control.stop().await;
}

/// A report by servers of a service in a region.
fn report(region: &str, service: &str) -> v1::ReportSignalsRequest {
    let servers =
        v1::ServerRates { service: service.into(), region: region.into(), servers: 1, ..Default::default() };
    let sender = v1::SignalSender { reporter: 7, interval_ms: 1000, regions: vec![region.into()] };
    v1::ReportSignalsRequest { sender: Some(sender), servers: vec![servers], ..Default::default() }
}

/// A report, numbered `number`, of counted calls in a region: one row for each pair of service and caller.
fn counted(number: u64, rows: &[(&str, &str)]) -> v1::ReportSignalsRequest {
    let row = |(service, to): &(&str, &str)| v1::CountedCalls {
        service: (*service).into(),
        by_server: true,
        to: (*to).into(),
        calls: 5,
        ..Default::default()
    };
    let interval =
        v1::CountedInterval { span_ms: 1_000, calls: rows.iter().map(row).collect(), ..Default::default() };
    let counts = v1::CountReport { reporter: 7, number, intervals: vec![interval], left_out: 0 };
    v1::ReportSignalsRequest { counts: Some(counts), ..Default::default() }
}

#[tokio::test]
async fn refused_call_count_rows_do_not_affect_other_rows() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &["shop"], "eu").await.connect(&control).await;
    let rows = [("shop/cart", "eu"), ("bank/vault", "eu"), ("shop/cart", "us"), ("shop/stock", "eu")];
    let response = agent.signals().report(counted(1, &rows)).await.unwrap().into_inner();
    assert_eq!(response.refused_rows, 2, "of another tenant, and of another region");
    let refused = agent.signals().report(counted(2, &rows[1..3])).await.unwrap_err();
    assert!(is_refusal(&refused), "no row is left: {refused}");
    let view = v1::ReadCallsRequest { window_s: 60, ..Default::default() };
    let view = own(&control).await.admin().read_calls(view).await.unwrap().into_inner();
    let calls: Vec<_> = view.rows.into_iter().filter_map(|row| row.calls).collect();
    let calls: Vec<_> = calls.iter().map(|row| (&*row.service, &*row.to, row.calls)).collect();
    assert_eq!(calls, [("shop/cart", "eu", 5), ("shop/stock", "eu", 5)]);
    assert_eq!(view.left_out, 2);
    control.stop().await;
}

#[tokio::test]
async fn load_reports_are_limited_to_own_region_and_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &["shop"], "eu").await;
    let replica = agent.issue(&control, "fairmesh/replica/web-1.eu").await;
    assert_eq!(replica.unwrap_err().code(), Code::PermissionDenied, "a replica reads all tenants");
    let relay = join(&control, "web-3", &[], "eu").await;
    let relay = relay.issue(&control, "fairmesh/replica/web-3.eu").await.unwrap().connect(&control).await;
    let agent = agent.connect(&control).await;
    agent.signals().report(report("eu", "shop/cart")).await.unwrap();
    let refused = agent.signals().report(report("us", "shop/cart")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let former = v1::ReportUsageRequest::from(report("us", "shop/cart"));
    let refused = agent.imbalance().report(former).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "as the release before reports it: {refused}");
    let refused = agent.signals().report(report("eu", "bank/vault")).await.unwrap_err();
    assert!(is_refusal(&refused), "{refused}");
    relay.signals().report(report("us", "bank/vault")).await.unwrap();
    control.stop().await;
}

#[tokio::test]
async fn invented_caller_number_cannot_take_rate_quota_of_other_caller() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let limit = RateLimit { calls: 100, per: Duration::from_secs(1), burst: 100, scope: Scope::Mesh };
    let policy = Policy { limit: Some(limit), ..Policy::default() };
    let value = record_encoding::encode(&Record::Policy(policy)).to_vec();
    apply(&own(&control).await, vec![put(policy_key("shop/cart"), value)]).await.unwrap();
    let [one, two] = [
        join(&control, "web-1", &[], "eu").await.connect(&control).await,
        join(&control, "web-2", &[], "eu").await.connect(&control).await,
    ];
    let claim = |held| v1::ClaimRequest {
        caller: 7,
        demands: vec![v1::Demand {
            service: "shop/cart".into(),
            route: String::new(),
            millicalls_per_second: 1_000_000,
            held,
        }],
    };
    // Both callers choose the number 7. If they counted as one caller, only the last claim would count.
    let parts = async {
        loop {
            let a = one.quota().claim(claim(None)).await.unwrap().into_inner().parts[0].parts;
            let b = two.quota().claim(claim(None)).await.unwrap().into_inner().parts[0].parts;
            if let (Some(a), Some(b)) = (a, b) {
                return (a, b);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let (a, b) = timeout(BOUND, parts).await.expect("parts are assigned");
    assert!(u64::from(a) + u64::from(b) <= 1_000_000_000, "{a} and {b} of a billion");
    control.stop().await;
}

#[tokio::test]
async fn program_without_agent_joins_once_and_renews_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let token = token_for(&control, "shop/cart").await;
    let refused = join_program(&control, &token, "shop/web").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("for the service shop/cart and no other"), "{refused}");
    let cart = join_program(&control, &token, "shop/cart").await.unwrap();
    let refused = join_program(&control, &token, "shop/cart").await.unwrap_err();
    assert!(refused.message().contains("was used already"), "{refused}");
    // Each certificate can renew only its own identity.
    let cart = cart.issue(&control, "shop/cart").await.unwrap();
    let cart = cart.issue(&control, "shop/cart").await.unwrap();
    for other in ["shop/web", "fairmesh/agent/cart", "fairmesh/operator/cart.uid-0"] {
        let refused = cart.issue(&control, other).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{other}: {refused}");
    }
    // A certificate that an agent vouched for cannot renew itself.
    let agent = join(&control, "web-1", &[], "eu").await;
    let vouched = agent.issue(&control, "shop/cart").await.unwrap();
    let refused = vouched.issue(&control, "shop/cart").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    // The program has the same rights as any program of its service.
    let connection = cart.connect(&control).await;
    connection.registry().register(registration("shop/cart", "cart-0")).await.unwrap();
    let refused = connection.registry().register(registration("bank/vault", "vault-0")).await.unwrap_err();
    assert!(is_refusal(&refused), "{refused}");
    control.stop().await;
}

#[tokio::test]
async fn malformed_region_leaves_join_token_usable() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let request = v1::CreateTokenRequest { agent: "web-1".into(), ttl_seconds: 600, ..Default::default() };
    let made = own(&control).await.authority().create_token(request).await.unwrap().into_inner();
    let token = made.token.parse().unwrap();
    let refused = join_with(&control, &token, ("web-1", "e u")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    join_with(&control, &token, ("web-1", "eu")).await.unwrap();
    control.stop().await;
}
