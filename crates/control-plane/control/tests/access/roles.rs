//! Tests of roles that records bind.

use fairmesh_model::{
    Authorization, AuthorizationRule, Backend, CallerMatch, Mirror, Policy, ProgramSelector, Protocol,
    Record, RecordKey, Route, Share, WorkloadEntry,
    access::{AccessRole, RoleBinding, Subject, UidRange, WorkloadBounds},
};
use fairmesh_test_support::eventually_async;
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use tonic::Code;

use super::{
    members::{join, own, start_strict},
    support::{TestControl, delete, named, policy, policy_key, put, service, service_key},
};

pub(crate) fn binding(role: AccessRole, tenants: &[&str], services: &[&str], subject: &str) -> RoleBinding {
    RoleBinding {
        role,
        tenants: tenants.iter().map(|name| name.parse().unwrap()).collect(),
        services: services.iter().map(|name| named(name)).collect(),
        subjects: vec![Subject::parse(subject).unwrap()],
        workloads: None,
    }
}

/// Binds a role, on behalf of the control plane's own user.
pub(crate) async fn bind(control: &TestControl, name: &str, binding: RoleBinding) {
    let key = RecordKey::RoleBinding(name.parse().unwrap()).to_string();
    let op = put(key, record_encoding::encode(&Record::RoleBinding(binding)).to_vec());
    apply(&own(control).await, vec![op]).await.unwrap();
}

pub(crate) async fn apply(connection: &Connection, ops: Vec<v1::Op>) -> Result<(), tonic::Status> {
    connection.admin().apply(v1::ApplyRequest { ops, ..v1::ApplyRequest::default() }).await.map(drop)
}

async fn read(connection: &Connection, prefix: &str) -> Result<usize, tonic::Status> {
    let request = v1::ReadRequest { prefixes: vec![prefix.into()], at_least: None };
    connection.rib().read(request).await.map(|response| response.into_inner().entries.len())
}

#[tokio::test]
async fn tenant_operator_writes_its_tenant_and_viewer_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let alice = agent.issue(&control, "fairmesh/operator/web-1.alice").await.unwrap();
    let connection = alice.connect(&control).await;
    let declare = |name: &str| vec![put(service_key(name), service(Protocol::Http1))];
    let refused = apply(&connection, declare("shop/cart")).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "without a role there is nothing: {refused}");
    assert!(read(&connection, "/t/shop/services/").await.is_err());

    let subject = "fairmesh/operator/web-1.alice";
    bind(&control, "alice", binding(AccessRole::Operator, &["shop"], &[], subject)).await;
    apply(&connection, declare("shop/cart")).await.unwrap();
    apply(&connection, vec![put(policy_key("shop/cart"), policy(5))]).await.unwrap();
    assert_eq!(read(&connection, "/t/shop/services/").await.unwrap(), 1);
    let written = v1::WriteRequest { ops: declare("shop/web") };
    connection.rib().write(written).await.unwrap();
    for (prefix, key) in [("/t/bank/services/", "bank/vault"), ("/", "bank/vault"), ("/t/", "bank/vault")] {
        assert!(read(&connection, prefix).await.is_err(), "{prefix}");
        assert_eq!(apply(&connection, declare(key)).await.unwrap_err().code(), Code::NotFound);
        let written = v1::WriteRequest { ops: declare(key) };
        assert_eq!(connection.rib().write(written).await.unwrap_err().code(), Code::NotFound);
    }
    let escalation = binding(AccessRole::Admin, &[], &[], subject);
    let key = RecordKey::RoleBinding("mine".parse().unwrap()).to_string();
    let op = put(key, record_encoding::encode(&Record::RoleBinding(escalation)).to_vec());
    assert_eq!(apply(&connection, vec![op]).await.unwrap_err().code(), Code::PermissionDenied);

    bind(&control, "alice", binding(AccessRole::Viewer, &[], &[], subject)).await;
    let refused = apply(&connection, declare("shop/other")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "it knows the tenant: {refused}");
    assert_eq!(read(&connection, "/t/shop/services/").await.unwrap(), 2);
    assert!(read(&connection, "/t/").await.is_ok());
    bind(&control, "alice", binding(AccessRole::Admin, &[], &[], subject)).await;
    apply(&connection, declare("bank/vault")).await.unwrap();
    let request = v1::CreateTokenRequest { agent: "evil".into(), ttl_seconds: 60, ..Default::default() };
    let refused = connection.authority().create_token(request).await.unwrap_err();
    assert!(refused.message().contains("only the user of the control plane"), "{refused}");
    control.stop().await;
}

#[tokio::test]
async fn control_plane_pages_require_role_for_anonymous_callers() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let body = r#"{"service": "shop/cart", "endpoints": [{"instance": "a", "address": "127.0.0.1:1", "region": "eu", "mtls": true}]}"#;
    let drain = r#"{"service": "shop/cart", "instances": ["a"], "deadline": "1s"}"#;
    for (method, path, body) in [
        ("POST", "/v1/register", body),
        ("POST", "/v1/drain", drain),
        ("POST", "/v1/renew", drain),
        ("GET", "/v1/shards/shop/cart", ""),
        ("PUT", "/v1/shards/shop/cart", "{}"),
        ("POST", "/v1/shards/shop/cart/moves", "{}"),
        ("GET", "/v1/imbalance", ""),
        ("GET", "/v1/imbalance?service=shop/cart", ""),
    ] {
        let (status, answer) = control.http(method, path, body).await;
        assert!(status.contains("403") || status.contains("404"), "{method} {path}: {status} {answer}");
        assert!(answer.contains("anonymous"), "{method} {path}: {answer}");
    }
    for page in ["/healthz", "/metrics"] {
        assert!(control.http("GET", page, "").await.0.contains("200"), "{page}");
    }
    eventually_async("the trust bundle is recorded and shown", async || {
        control.http("GET", "/v1/trust-bundle", "").await.0.contains("200")
    })
    .await;
    let registrar = binding(AccessRole::Registrar, &[], &["shop/cart"], "anonymous");
    bind(&control, "pages", registrar).await;
    let (status, answer) = control.http("POST", "/v1/register", body).await;
    assert!(status.contains("200"), "{status} {answer}");
    let plaintext = body.replace(r#""mtls": true"#, r#""mtls": false"#);
    let (status, answer) = control.http("POST", "/v1/register", &plaintext).await;
    assert!(
        status.contains("409") && answer.contains("plaintext endpoint in a strict mesh"),
        "{status} {answer}"
    );
    let other = body.replace("shop/cart", "bank/vault");
    assert!(control.http("POST", "/v1/register", &other).await.0.contains("404"));
    assert!(control.http("PUT", "/v1/shards/shop/cart", "{}").await.0.contains("403"));
    control.stop().await;
}

/// A policy whose only route splits calls to a service, or mirrors them to it.
fn routed(to: &str, mirrors: bool) -> Vec<u8> {
    let mut route = Route::new("all".parse().unwrap());
    match mirrors {
        true => route.actions.mirror = Some(Mirror { service: named(to), share: Share::ALL }),
        false => route.split = vec![Backend { service: named(to), weight: 1 }],
    }
    let policy = Policy { routes: vec![route], ..Policy::default() };
    record_encoding::encode(&Record::Policy(policy)).to_vec()
}

#[tokio::test]
async fn policy_may_name_only_services_that_its_author_may_read() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &["red"], "eu").await;
    let alice = agent.issue(&control, "fairmesh/operator/web-1.alice").await.unwrap();
    let connection = alice.connect(&control).await;
    let subject = "fairmesh/operator/web-1.alice";
    bind(&control, "alice", binding(AccessRole::Operator, &["red"], &[], subject)).await;
    apply(&connection, vec![put(service_key("red/api"), service(Protocol::Http1))]).await.unwrap();
    let named_by = |to: &str, mirrors| vec![put(policy_key("red/api"), routed(to, mirrors))];
    for mirrors in [false, true] {
        let refused = apply(&connection, named_by("blue/vault", mirrors)).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        let written = v1::WriteRequest { ops: named_by("blue/vault", mirrors) };
        let refused = connection.rib().write(written).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        apply(&connection, named_by("red/next", mirrors)).await.unwrap();
    }
    // A caller that has lost the right to read the service cannot restore the route either.
    bind(&control, "blue", binding(AccessRole::Viewer, &["blue"], &[], subject)).await;
    apply(&connection, named_by("blue/vault", false)).await.unwrap();
    let history = v1::GetHistoryRequest { kind: "policies".into(), service: "red/api".into() };
    let history = connection.admin().get_history(history).await.unwrap().into_inner();
    let revision = history.changes.iter().map(|change| change.revision).max().unwrap();
    apply(&connection, vec![put(policy_key("red/api"), policy(5))]).await.unwrap();
    bind(&control, "blue", binding(AccessRole::Viewer, &["green"], &[], subject)).await;
    let rollback = |revision| v1::RollbackRequest {
        kind: "policies".into(),
        service: "red/api".into(),
        revision,
        ..Default::default()
    };
    let refused = connection.admin().rollback(rollback(revision)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    control.stop().await;
}

#[tokio::test]
async fn callers_of_service_may_not_read_its_history() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    apply(&own(&control).await, vec![put(policy_key("blue/vault"), policy(5))]).await.unwrap();
    let [blue, red] =
        [join(&control, "blue-1", &["blue"], "eu").await, join(&control, "red-1", &["red"], "eu").await];
    let read = async |connection: &Connection| {
        let request = v1::GetHistoryRequest { kind: "policies".into(), service: "blue/vault".into() };
        connection.admin().get_history(request).await
    };
    let red = red.connect(&control).await;
    assert_eq!(self::read(&red, "/t/blue/policies/vault").await.unwrap(), 1, "by default all may call");
    assert_eq!(read(&red).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(!read(&blue.connect(&control).await).await.unwrap().into_inner().changes.is_empty());
    control.stop().await;
}

fn workload(uid: u32) -> Vec<u8> {
    let programs = vec![ProgramSelector { uid: Some(uid), ..ProgramSelector::default() }];
    record_encoding::encode(&Record::Workload(WorkloadEntry { agents: Vec::new(), programs })).to_vec()
}

#[tokio::test]
async fn operator_registers_workloads_only_within_its_delegation() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let alice = agent.issue(&control, "fairmesh/operator/web-1.alice").await.unwrap();
    let connection = alice.connect(&control).await;
    let key = |name: &str| RecordKey::Workload(named(name)).to_string();
    let claim = |name: &str, uid| vec![put(key(name), workload(uid))];
    apply(&own(&control).await, claim("blue/web", 1500)).await.unwrap();
    let subject = "fairmesh/operator/web-1.alice";
    let operator = binding(AccessRole::Operator, &["red"], &[], subject);
    bind(&control, "alice", operator.clone()).await;
    let refused = apply(&connection, claim("red/x", 1001)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "registration is with administrators: {refused}");

    let uids = vec![UidRange::parse("1000-1999").unwrap()];
    let workloads = Some(WorkloadBounds { uids, ..WorkloadBounds::default() });
    bind(&control, "alice", RoleBinding { workloads, ..operator }).await;
    apply(&connection, claim("red/x", 1001)).await.unwrap();
    for (name, uid, why) in [
        ("red/x", 2000, "outside of its users"),
        ("red/x", 1500, "another tenant's workload"),
        ("blue/x", 1001, "there is no service"),
    ] {
        let refused = apply(&connection, claim(name, uid)).await.unwrap_err();
        assert!(refused.message().contains(why), "{name} {uid}: {refused}");
        let written = v1::WriteRequest { ops: claim(name, uid) };
        assert!(connection.rib().write(written).await.is_err(), "{name} {uid}");
    }
    // An administrator may assign a program to several tenants.
    apply(&own(&control).await, claim("red/y", 1500)).await.unwrap();
    apply(&connection, vec![delete(key("red/x"))]).await.unwrap();
    control.stop().await;
}

fn rules(from: &str) -> Authorization {
    let from = vec![CallerMatch::new(from).unwrap()];
    let rule = AuthorizationRule::allowing("callers".parse().unwrap(), from);
    Authorization { rules: vec![rule], ..Authorization::default() }
}

fn rules_key(service: &str) -> String {
    RecordKey::Authorization(named(service)).to_string()
}

fn put_rules(service: &str, rules: Authorization) -> v1::Op {
    put(rules_key(service), record_encoding::encode(&Record::Authorization(rules)).to_vec())
}

fn policy_with(rules: Option<Authorization>) -> Vec<u8> {
    let policy = Policy { authorization: rules.map(Box::new), ..Policy::default() };
    record_encoding::encode(&Record::Policy(policy)).to_vec()
}

/// The rules that servers read from the policy.
async fn in_force(connection: &Connection, service: &str) -> Option<Authorization> {
    let request = v1::ReadRequest { prefixes: vec![policy_key(service)], at_least: None };
    let entries = connection.rib().read(request).await.unwrap().into_inner().entries;
    let value = entries.into_iter().next()?.value;
    match record_encoding::decode(&RecordKey::Policy(named(service)), &value).unwrap() {
        Record::Policy(policy) => policy.authorization.map(|rules| *rules),
        _ => None,
    }
}

#[tokio::test]
async fn policy_written_without_rules_keeps_authorization_rules_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let owner = own(&control).await;
    let web = || Some(rules("shop/web"));
    // A policy written by the previous release contains the rules.
    apply(&owner, vec![put(policy_key("shop/cart"), policy_with(web()))]).await.unwrap();
    apply(&owner, vec![put(policy_key("shop/cart"), policy_with(None))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/cart").await, web());
    apply(&owner, vec![put_rules("shop/cart", rules("shop/api"))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/cart").await, Some(rules("shop/api")));
    let delete = |key: String| v1::Op { key, value: None, condition: None };
    apply(&owner, vec![delete(policy_key("shop/cart"))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/cart").await, Some(rules("shop/api")), "only the policy is deleted");

    let both =
        vec![put_rules("shop/cart", rules("shop/api")), put(policy_key("shop/cart"), policy_with(web()))];
    let refused = apply(&owner, both).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    apply(&owner, vec![delete(rules_key("shop/cart"))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/cart").await, None);

    apply(&owner, vec![put_rules("shop/new", rules("shop/web"))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/new").await, web(), "without a policy before");
    control.stop().await;
}

#[tokio::test]
async fn operators_write_policies_and_only_authorizers_write_rules() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let subject = "fairmesh/operator/web-1.alice";
    let alice = agent.issue(&control, subject).await.unwrap();
    let connection = alice.connect(&control).await;
    let owner = own(&control).await;
    apply(&owner, vec![put_rules("shop/cart", rules("shop/web"))]).await.unwrap();

    bind(&control, "alice", binding(AccessRole::Operator, &["shop"], &[], subject)).await;
    let policy = |rules| vec![put(policy_key("shop/cart"), policy_with(rules))];
    apply(&connection, policy(None)).await.unwrap();
    apply(&connection, policy(Some(rules("shop/web")))).await.unwrap();
    for ops in [policy(Some(rules("*"))), vec![put_rules("shop/cart", rules("*"))]] {
        assert_eq!(apply(&connection, ops).await.unwrap_err().code(), Code::PermissionDenied);
    }
    let written = v1::WriteRequest { ops: policy(None) };
    assert_eq!(connection.rib().write(written).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(in_force(&owner, "shop/cart").await, Some(rules("shop/web")));

    bind(&control, "alice", binding(AccessRole::Authorizer, &["shop"], &[], subject)).await;
    apply(&connection, vec![put_rules("shop/cart", rules("shop/api"))]).await.unwrap();
    assert_eq!(in_force(&owner, "shop/cart").await, Some(rules("shop/api")));
    assert_eq!(apply(&connection, policy(None)).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(apply(&connection, vec![put_rules("bank/vault", rules("*"))]).await.is_err());
    control.stop().await;
}

/// The separate record of a service's rules.
async fn recorded(connection: &Connection, service: &str) -> Option<Authorization> {
    let request = v1::ReadRequest { prefixes: vec![rules_key(service)], at_least: None };
    let entries = connection.rib().read(request).await.unwrap().into_inner().entries;
    let value = entries.into_iter().next()?.value;
    match record_encoding::decode(&RecordKey::Authorization(named(service)), &value).unwrap() {
        Record::Authorization(rules) => Some(rules),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn raw_write_of_policy_or_rules_keeps_policy_and_rules_consistent() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let owner = own(&control).await;
    let write = async |op: v1::Op| owner.rib().write(v1::WriteRequest { ops: vec![op] }).await.map(drop);
    let both = async || (in_force(&owner, "shop/cart").await, recorded(&owner, "shop/cart").await);
    let (web, api) = (rules("shop/web"), rules("shop/api"));
    write(put(policy_key("shop/cart"), policy_with(Some(web.clone())))).await.unwrap();
    assert_eq!(both().await, (Some(web.clone()), Some(web.clone())));
    write(put(policy_key("shop/cart"), policy_with(None))).await.unwrap();
    assert_eq!(both().await, (Some(web.clone()), Some(web)), "a policy without rules opens nothing");
    write(put_rules("shop/cart", api.clone())).await.unwrap();
    assert_eq!(both().await, (Some(api.clone()), Some(api)));
    write(delete(rules_key("shop/cart"))).await.unwrap();
    assert_eq!(both().await, (None, None));
    control.stop().await;
}

#[tokio::test]
async fn concurrent_workload_claims_give_programs_to_only_one_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let uids = vec![UidRange::parse("1000-1999").unwrap()];
    let mut operators = Vec::new();
    for tenant in ["red", "blue"] {
        let path = format!("fairmesh/operator/web-1.{tenant}");
        let operator = agent.issue(&control, &path).await.unwrap();
        let workloads = Some(WorkloadBounds { uids: uids.clone(), ..WorkloadBounds::default() });
        let role = RoleBinding { workloads, ..binding(AccessRole::Operator, &[tenant], &[], &path) };
        bind(&control, tenant, role).await;
        operators.push(operator.connect(&control).await);
    }
    for uid in 1000..1040 {
        let claim = |tenant: &str| {
            let key = RecordKey::Workload(named(&format!("{tenant}/of-{uid}"))).to_string();
            vec![put(key, workload(uid))]
        };
        let (red, blue) =
            tokio::join!(apply(&operators[0], claim("red")), apply(&operators[1], claim("blue")));
        assert!(red.is_ok() != blue.is_ok(), "uid {uid}: {red:?} {blue:?}");
    }
    control.stop().await;
}
