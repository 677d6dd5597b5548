use axum::{body::Body, extract::Request};
use fairmesh_identity::Workload;
use fairmesh_model::{Identity, Location, Region, Tenant};
use fairmesh_wire::transport::{Address, Transport};

use super::*;
use crate::{
    AgentConfig,
    authorization::{Gate, ReportSender},
    identity,
    reports::tests::absent,
};

/// A program of another user than the agent's.
fn program(number: u32) -> ProgramFacts {
    let unknown = || Err("it is a test".to_owned());
    ProgramFacts {
        uid: 7,
        gid: number,
        executable: unknown(),
        cgroup: unknown(),
        network_namespace: unknown(),
    }
}

fn tenant(name: &str) -> Reach {
    Reach::Tenants([Tenant::new(name).unwrap()].into())
}

#[tokio::test]
async fn cached_permission_is_evicted_together_with_tenants() {
    let permissions = ProgramPermissions::new(absent());
    let first = program(0);
    permissions.settle(&first, Question::BeKnown, Ok(tenant("red"))).unwrap();
    let mut was_evicted = false;
    for number in 1..=2 * MAX_ANSWERS {
        let other = program(number as u32);
        let service = ServiceName::new("shop/cart").unwrap();
        permissions.settle(&other, Question::See(service), Ok(Reach::Nothing)).unwrap();
        let is_cached = permissions.answer(&first, &Question::BeKnown).is_some();
        assert_eq!(permissions.tenants(&first) == tenant("red"), is_cached, "after {number} answers");
        was_evicted |= !is_cached;
    }
    assert!(was_evicted);
    permissions.settle(&first, Question::BeKnown, Ok(tenant("blue"))).unwrap();
    assert_eq!(permissions.tenants(&first), tenant("blue"));
}

fn member() -> AgentIdentity {
    let nowhere = |name: &str| Address::Unix(format!("/nowhere/{name}").into());
    let config = AgentConfig {
        upstreams: vec![nowhere("control.sock")],
        transport: Transport::default(),
        listen: nowhere("agent.sock"),
        state_dir: "/nowhere".into(),
        location: Location::in_region(Region::new("eu").unwrap()),
        local_address: None,
        name: "web-1".into(),
        join_token: None,
        workload_api: Some(nowhere("spire.sock")),
        metrics: None,
        probes: None,
    };
    let workload = Arc::<Workload>::default();
    let kept = identity::load(&config, &workload).unwrap().unwrap();
    AgentIdentity::new(&config, kept, workload, (absent(), Transport::default()))
}

#[tokio::test]
async fn program_keeps_sender_name_when_mesh_gets_trust_domain() {
    let gate = |identity| Gate::new(identity, absent(), Region::new("eu").unwrap());
    let source = async |gate: &Gate| {
        let mut request = Request::post("/fairmesh.v1.Signals/Report").body(Body::from(vec![0; 5])).unwrap();
        request.extensions_mut().insert(Identity::Local { uid: 7 });
        request.extensions_mut().insert(Arc::new(program(0)));
        let request = gate.check(request).await.unwrap();
        request.extensions().get::<ReportSender>().unwrap().source()
    };
    let before = source(&gate(None)).await;
    let in_mesh = gate(Some(member()));
    in_mesh.permissions.settle(&program(0), Question::BeKnown, Ok(tenant("red"))).unwrap();
    let after = source(&in_mesh).await;
    assert!(!before.owner.is_limited && before.tenants == Reach::Everything);
    assert!(after.owner.is_limited && after.tenants == tenant("red"));
    assert_eq!(before.sender, after.sender, "the later report replaces the earlier one");
}
