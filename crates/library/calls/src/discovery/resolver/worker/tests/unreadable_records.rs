//! Records that cannot be decoded widen no access.

use fairmesh_model::Authorization;

use super::*;

/// A value that no release can decode.
const DAMAGED: &[u8] = &[0xff];

fn damaged(key: &RecordKey) -> (Prefix, Vec<(Arc<str>, Entry)>) {
    let entry = Entry { value: Bytes::from_static(DAMAGED), revision: 2 };
    (Prefix::from(key), vec![(key.to_string().into(), entry)])
}

/// Delivers the service, its endpoints, and this value of its policy.
fn deliver(rig: &mut Rig, policy: (Prefix, Vec<(Arc<str>, Entry)>)) {
    for scope in [DefaultsScope::Mesh, DefaultsScope::Tenant(name().tenant)] {
        rig.handle(Event::Update(update([(Prefix::from(&RecordKey::PolicyDefaults(scope)), vec![])])));
    }
    let service = RecordKey::Service(name());
    let declared = Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http2,
        virtual_address: None,
        identity: None,
    };
    let endpoint = endpoint("a");
    let key = RecordKey::Endpoint(name(), here().region, endpoint.instance.clone());
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![]),
        (Prefix::from(&RecordKey::TrustBundle), vec![]),
        (Prefix::from(&service), vec![entry(&service, declared)]),
        policy,
    ])));
    let endpoints = (Prefix::endpoints(&name(), None), vec![entry(&key, endpoint)]);
    rig.handle(Event::Update(update([endpoints])));
}

#[tokio::test(start_paused = true)]
async fn authorizing_process_refuses_service_until_its_policy_is_readable() {
    let mut rig = rig();
    rig.worker.topology.authorizes_callers = true;
    let subscription = rig.follow();
    let key = RecordKey::Policy(name());
    for _ in 0..2 {
        // A reconnect delivers the same snapshot again.
        deliver(&mut rig, damaged(&key));
        let state = subscription.state();
        let ServiceState::Unavailable(why) = &*state else { panic!("{state:?}") };
        assert!(why.contains("its policy cannot be read"), "{why}");
    }
    let readable = || (Prefix::from(&key), vec![entry(&key, Policy::default())]);
    rig.handle(Event::Update(update([readable()])));
    assert!(matches!(*subscription.state(), ServiceState::Ready(_)));
    rig.handle(Event::Update(update([damaged(&key)])));
    assert!(matches!(*subscription.state(), ServiceState::Ready(_)), "the last one stays in force");
    // A record that is written after the policy was deleted may restrict callers.
    for (policy, is_ready) in [((Prefix::from(&key), vec![]), true), (damaged(&key), false)] {
        rig.handle(Event::Update(update([policy])));
        assert_eq!(matches!(*subscription.state(), ServiceState::Ready(_)), is_ready);
    }
}

#[tokio::test(start_paused = true)]
async fn caller_uses_service_with_unreadable_policy_and_admits_no_reader_by_it() {
    let mut rig = rig();
    let subscription = rig.follow();
    deliver(&mut rig, damaged(&RecordKey::Policy(name())));
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    assert_eq!(ready.read_authorization(), Some(Authorization::default()), "it allows no caller");
}

#[tokio::test(start_paused = true)]
async fn unreadable_roots_refuse_plaintext_endpoints() {
    let mut rig = rig();
    let subscription = rig.follow();
    deliver(&mut rig, (Prefix::from(&RecordKey::Policy(name())), vec![]));
    rig.handle(Event::Update(update([damaged(&RecordKey::TrustBundle)])));
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    assert!(!ready.upstream.refused().is_empty(), "the mesh has a trust domain");
}
