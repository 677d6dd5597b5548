//! Tests of calls that a replica forwards.

use std::time::Duration;

use fairmesh_identity::{Clock as _, SystemClock, call_statement};
use fairmesh_model::{Record, RecordKey};
use fairmesh_wire::{ON_BEHALF_OF, RELAYED, STATEMENT, record_encoding, transport::StatedCall, v1};
use prost::Message as _;
use tonic::{Code, Request, metadata::MetadataValue};

use super::{
    machines::{is_refusal, registration},
    members::{TestMember, join, own, start_strict},
};

const REGISTER: &str = "/fairmesh.v1.Registry/Register";
const PROGRAM: &str = "local uid 7";

/// A registration, with a member's signed statement about it at a given time.
fn stated(
    member: &TestMember,
    (path, on_behalf_of): (&str, &str),
    request: &v1::RegisterRequest,
    now: Duration,
) -> Vec<u8> {
    let message = request.encode_to_vec();
    let call = StatedCall { path, on_behalf_of, message: &message };
    call_statement::state(&member.workload.credentials().unwrap(), call, now).unwrap()
}

fn call(request: v1::RegisterRequest, statement: &[u8], program: &str) -> Request<v1::RegisterRequest> {
    let mut call = Request::new(request);
    call.metadata_mut().insert_bin(STATEMENT, MetadataValue::from_bytes(statement));
    call.metadata_mut().insert(ON_BEHALF_OF, program.parse().unwrap());
    call
}

#[tokio::test]
async fn replica_forwards_calls_signed_by_agents_and_cannot_forge_any() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &["shop"], "eu").await;
    let beside = join(&control, "rib-1", &[], "eu").await;
    let replica = beside.issue(&control, "fairmesh/replica/rib-1.eu").await.unwrap();
    let mut registry = replica.connect(&control).await.registry();
    let (wanted, now) = (registration("shop/cart", "cart-0"), SystemClock.now());
    let signed = stated(&agent, (REGISTER, PROGRAM), &wanted, now);
    registry.register(call(wanted.clone(), &signed, PROGRAM)).await.unwrap();
    let key = RecordKey::parse("/t/shop/endpoints/cart/eu/cart-0").unwrap();
    let read = v1::ReadRequest { prefixes: vec![key.to_string()], at_least: None };
    let entries = own(&control).await.rib().read(read).await.unwrap().into_inner().entries;
    let record = record_encoding::decode(&key, &entries[0].value).unwrap();
    let Record::Endpoint(endpoint) = record else { panic!() };
    assert_eq!(endpoint.labels["fairmesh.agent"], "web-1", "it is the agent's, not the replica's");

    let other = registration("shop/cart", "cart-1");
    let forged = stated(&replica, (REGISTER, PROGRAM), &other, now);
    let of_path = stated(&agent, ("/fairmesh.v1.Registry/Deregister", PROGRAM), &other, now);
    let early = stated(&agent, (REGISTER, PROGRAM), &other, now - Duration::from_secs(3600));
    let late = stated(&agent, (REGISTER, PROGRAM), &other, now + Duration::from_secs(3600));
    let mut broken = signed.clone();
    *broken.last_mut().unwrap() ^= 1;
    for (what, statement, program) in [
        ("another message", &signed, PROGRAM),
        ("another path", &of_path, PROGRAM),
        ("another program", &stated(&agent, (REGISTER, PROGRAM), &other, now), "local uid 0"),
        ("an hour before", &early, PROGRAM),
        ("an hour later", &late, PROGRAM),
        ("a broken signature", &broken, PROGRAM),
        ("no statement at all", &b"nothing".to_vec(), PROGRAM),
    ] {
        let refused = registry.register(call(other.clone(), statement, program)).await.expect_err(what);
        assert_eq!(refused.code(), Code::Unauthenticated, "{what}: {refused}");
    }
    let refused = registry.register(call(other.clone(), &forged, PROGRAM)).await.unwrap_err();
    assert!(is_refusal(&refused), "by its own signature a replica registers nothing: {refused}");
    let mut unsigned = Request::new(other);
    unsigned.metadata_mut().insert(ON_BEHALF_OF, "spiffe://prod/fairmesh/agent/web-1".parse().unwrap());
    let refused = registry.register(unsigned).await.unwrap_err();
    assert!(is_refusal(&refused), "by its word alone it registers nothing: {refused}");
    // A replica does not use its own rights for calls of others.
    let moves = || v1::ListMovesRequest { service: "shop/cart".into() };
    registry.list_moves(moves()).await.unwrap();
    let mut passed_on = Request::new(moves());
    passed_on.metadata_mut().insert(ON_BEHALF_OF, "spiffe://prod/shop/cart".parse().unwrap());
    let refused = registry.list_moves(passed_on).await.unwrap_err();
    assert!(refused.message().contains("without the statement of its maker"), "{refused}");
    // A call signed by an agent is authorized by the agent's rights.
    let bank = registration("bank/vault", "vault-0");
    let signed = stated(&agent, (REGISTER, PROGRAM), &bank, now);
    assert!(is_refusal(&registry.register(call(bank, &signed, PROGRAM)).await.unwrap_err()));
    control.stop().await;
}

/// An agent on the control plane's machine may check any region, since the kernel authenticates it. A remote
/// agent must not get that right because a replica on the control plane's machine forwards its calls.
#[tokio::test]
async fn call_forwarded_by_local_replica_does_not_count_as_local_agent() {
    const JUDGE: &str = "/fairmesh.v1.Checker/Judge";
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let request = || v1::JudgeRequest { region: "us".into(), ..Default::default() };
    let message = request().encode_to_vec();
    let stated = StatedCall { path: JUDGE, on_behalf_of: "", message: &message };
    let now = SystemClock.now();
    let signed = call_statement::state(&agent.workload.credentials().unwrap(), stated, now).unwrap();
    let mut checker = own(&control).await.checker();
    for (is_relayed, expected) in [(false, Code::FailedPrecondition), (true, Code::PermissionDenied)] {
        let mut call = Request::new(request());
        call.metadata_mut().insert_bin(STATEMENT, MetadataValue::from_bytes(&signed));
        if is_relayed {
            call.metadata_mut().insert(RELAYED, MetadataValue::from_static("1"));
        }
        let refused = checker.judge(call).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
    }
    control.stop().await;
}
