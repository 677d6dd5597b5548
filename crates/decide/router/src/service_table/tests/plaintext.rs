//! Plaintext endpoints in meshes with a trust domain.

use fairmesh_model::{MtlsMode, SpiffeId};

use super::*;
use crate::{EndpointTarget, PeerIdentity};

/// A service with two endpoints: `honest` speaks mutual TLS, and `intruder` plaintext.
fn attacked(kind: ServiceKind) -> Fleet {
    let honest = Endpoint { mtls: true, ..endpoint("honest", "eu") };
    Fleet { requires_mtls: true, ..Fleet::new(kind, vec![endpoint("intruder", "eu"), honest]) }
}

fn only_intruder() -> Fleet {
    let mut fleet = attacked(ServiceKind::Replicated);
    fleet.endpoints.truncate(1);
    fleet
}

/// Describes how a caller connects to a table's endpoint according to [`EndpointTarget`], with or without its own
/// identity.
fn connects(target: &EndpointTarget, has_identity: bool) -> &'static str {
    match (&target.identity, target.accepts_plaintext) {
        (Some(_), _) if has_identity => "mtls",
        (Some(_), false) => "fails",
        (Some(_), true) | (None, _) => "plaintext",
    }
}

#[test]
fn trust_domain_and_policy_decide_whether_plaintext_is_allowed() {
    // The three modes: no trust domain, permissive, and strict.
    let modes = [
        ("none", false, MtlsMode::Strict),
        ("permissive", true, MtlsMode::Permissive),
        ("strict", true, MtlsMode::Strict),
    ];
    let expected = |mode, speaks_mtls, has_identity| match (mode, speaks_mtls, has_identity) {
        (_, true, true) => "mtls",
        ("none" | "strict", true, false) => "fails",
        ("permissive", true, false) | ("none" | "permissive", false, _) => "plaintext",
        _ => "refused",
    };
    for (mode, requires_mtls, mtls) in modes {
        for speaks_mtls in [false, true] {
            let mut fleet = only_intruder();
            (fleet.requires_mtls, fleet.policy.mtls) = (requires_mtls, mtls);
            fleet.endpoints[0].mtls = speaks_mtls;
            let table = fleet.compile(None);
            for has_identity in [false, true] {
                let seen = match table.pick(&PickParams::default(), 0, 1) {
                    Ok(picked) => connects(table.target(picked.index), has_identity),
                    Err(why) => {
                        assert_eq!(*why, PickError::PlaintextRefused { count: 1 });
                        "refused"
                    }
                };
                let case = format!("{mode}, mtls {speaks_mtls}, identity {has_identity}");
                assert_eq!(seen, expected(mode, speaks_mtls, has_identity), "{case}");
            }
        }
    }
}

#[test]
fn plaintext_endpoint_gets_no_call_in_strict_mesh() {
    for kind in [ServiceKind::Replicated, ServiceKind::ConsistentHash] {
        let table = attacked(kind).compile(None);
        for key in 0..500 {
            let params = PickParams { key: Some(ShardKey(key)), ..PickParams::default() };
            let picked = table.pick(&params, 0, key as u64).unwrap();
            assert_eq!(id(&table, &picked), "honest", "{kind:?}");
        }
        // Neither load polls nor eBPF programs use the intruder.
        let named = |&index: &u32| table.target(index).instance.to_string();
        let polled: Vec<_> = table.nearest().iter().map(named).collect();
        let sent = table.numbers().map(|numbers| numbers.indices().map(|index| named(&index)).collect());
        let sent: Vec<_> = sent.unwrap_or_default();
        match kind {
            ServiceKind::Replicated => {
                assert_eq!((polled, sent), (vec!["honest".into()], vec!["honest".into()]))
            }
            _ => assert!(polled.is_empty() && sent.is_empty()),
        }
        assert_eq!(table.refused(), [InstanceId::new("intruder").unwrap()]);
    }
}

#[test]
fn endpoint_refused_for_plaintext_replaces_no_same_named_instance() {
    let mut fleet = attacked(ServiceKind::Replicated);
    fleet.endpoints[1].state = EndpointState::Draining;
    fleet.endpoints[0] = Endpoint { instance: fleet.endpoints[1].instance.clone(), ..endpoint("x", "us") };
    let table = fleet.compile(None);
    let picked = table.pick(&PickParams::default(), 0, 1).unwrap();
    assert_eq!(table.target(picked.index).location.region, region("eu"));
    assert!(table.target(picked.index).identity.is_some());
}

#[test]
fn endpoints_refused_for_plaintext_do_not_weaken_verdicts_on_others() {
    let mut fleet = attacked(ServiceKind::Replicated);
    fleet.endpoints.extend([endpoint("second", "eu"), endpoint("third", "eu")]);
    fleet.endpoints.push(Endpoint { mtls: true, ..endpoint("other", "eu") });
    let verdict =
        Verdict { healthy: false, since_ms: 1, confidence: 1000, cause: String::new(), stale: false };
    for instance in ["intruder", "second", "third", "honest"] {
        fleet.health.put(region("eu"), InstanceId::new(instance).unwrap(), verdict.clone());
    }
    let table = fleet.compile(None);
    assert!(table.panicking_regions().next().is_none(), "one of two that may be called");
    assert_eq!(reached(&table), names(&["other"]));
}

#[test]
fn endpoint_must_prove_identity_declared_by_its_service() {
    let mut fleet = only_intruder();
    let id: SpiffeId = "spiffe://partner/shop/cart".parse().unwrap();
    fleet.service.identity = Some(id.clone());
    let table = fleet.compile(None);
    let picked = table.pick(&PickParams::default(), 0, 1).unwrap();
    assert_eq!(table.target(picked.index).identity, Some(PeerIdentity::Id(id)));
    assert!(!table.target(picked.index).accepts_plaintext);
}

#[test]
fn explain_gives_reason_for_skipping_plaintext_endpoint() {
    let table = attacked(ServiceKind::Replicated).compile(None);
    let explained = table.explain_pick(&PickParams::default(), 0, 1);
    let why = explained.steps.iter().find(|step| step.title == "security").unwrap();
    assert_eq!(why.detail, "not used: plaintext endpoint in a strict mesh: intruder");
    let none = only_intruder().compile(None).pick(&PickParams::default(), 0, 1).unwrap_err().to_string();
    for part in ["1 plaintext endpoint in a strict mesh", "fairmesh register", "mtls: permissive"] {
        assert!(none.contains(part), "{part}: {none}");
    }
}
