use bytes::Bytes;
use fairmesh_controllers::{Controller as _, Now, Wake};
use fairmesh_model::{
    Policy, RateLimit, Record, RecordKey, Scope, StoreId,
    rate_limit_quota::{ALL_PARTS, DEFAULT_PARTS},
};
use fairmesh_rib::Commit;
use fairmesh_wire::record_encoding;

use super::*;

/// A control plane where `shop/one` has a mesh-wide limit of 100 calls per second, and `shop/two` has a limit
/// for each caller.
fn quotas() -> Quotas {
    let node = Node::new(StoreId(7));
    let policy = |scope| {
        let limit = RateLimit { calls: 100, per: Duration::from_secs(1), burst: 10, scope };
        record_encoding::encode(&Record::Policy(Policy { limit: Some(limit), ..Policy::default() }))
    };
    let change = |service: &str, value: Bytes| {
        (RecordKey::Policy(service.parse().unwrap()).to_string().into(), Some(value))
    };
    let changes = vec![change("shop/one", policy(Scope::Mesh)), change("shop/two", policy(Scope::Caller))];
    node.apply(Commit { revision: 1, changes });
    Quotas::new(node)
}

fn demand(service: &str, demand: u64, held: Option<u32>) -> v1::Demand {
    let (service, route) = (service.to_owned(), String::new());
    v1::Demand { service, route, millicalls_per_second: demand, held }
}

fn claim(quotas: &Quotas, caller: u64, demand: v1::Demand) -> Option<u32> {
    quotas.assign_parts(v1::ClaimRequest { caller, demands: vec![demand] }, caller).unwrap().parts[0].parts
}

#[tokio::test(start_paused = true)]
async fn rate_quota_is_assigned_only_after_startup_grace_for_all_callers() {
    for (callers, grace) in [(10, STARTUP_GRACE), (6_000, MAX_STARTUP_GRACE)] {
        let quotas = quotas();
        let claim = |caller| claim(&quotas, caller, demand("shop/one", 100, Some(1_000)));
        for caller in 0..callers {
            assert_eq!(claim(caller), None);
        }
        tokio::time::advance(grace - Duration::from_millis(1)).await;
        assert_eq!(claim(0), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(claim(0) > Some(1_000), "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn only_declared_mesh_wide_rate_limits_are_divided() {
    let quotas = quotas();
    tokio::time::advance(STARTUP_GRACE).await;
    for invented in 0..MAX_LIMITS + 10 {
        let name = format!("shop/invented-{invented}");
        assert_eq!(claim(&quotas, 1, demand(&name, u64::MAX, Some(ALL_PARTS))), None);
    }
    assert_eq!(claim(&quotas, 1, demand("shop/two", 1_000, None)), None);
    assert!(claim(&quotas, 2, demand("shop/one", 50_000, None)) > Some(DEFAULT_PARTS));
    let stats = quotas.stats();
    assert_eq!((stats.limits, stats.shares, stats.undeclared), (1, 1, MAX_LIMITS as u64 + 11));
}

#[tokio::test(start_paused = true)]
async fn rate_limit_no_longer_declared_is_forgotten() {
    let quotas = quotas();
    tokio::time::advance(STARTUP_GRACE).await;
    assert!(claim(&quotas, 1, demand("shop/one", 50_000, None)).is_some());
    let key = RecordKey::Policy("shop/one".parse().unwrap()).to_string();
    quotas.shared.node.apply(Commit { revision: 2, changes: vec![(key.into(), None)] });
    assert_eq!(claim(&quotas, 1, demand("shop/one", 50_000, None)), None);
    let mut controller = QuotaController(quotas.clone());
    let facts = controller.read_facts(&quotas.shared.node, Wake::Interval).await.unwrap();
    let now = Now { at: Instant::now(), wall_ms: 0 };
    for effect in controller.reconcile(facts, now).effects {
        controller.apply(effect).await.unwrap();
    }
    assert_eq!((quotas.stats().limits, quotas.stats().shares), (0, 0));
    let facts = controller.read_facts(&quotas.shared.node, Wake::Interval).await.unwrap();
    assert!(controller.reconcile(facts, now).effects.is_empty(), "there is nothing left to forget");
}

#[test]
fn full_rate_limit_table_makes_room_for_identity_with_fewer_callers() {
    let mut limits = Limits::default();
    let quota = limits.by_name.entry(("shop/one".parse().unwrap(), String::new())).or_default();
    for caller in 0..3 {
        quota
            .claim(rate_limit_quota::Claim { caller, identity: 2, demand: 1_000, held: None }, 100_000, 0)
            .unwrap();
    }
    limits.shares = MAX_SHARES;
    assert!(!limits.make_room(2), "its own callers make no room");
    assert!(limits.make_room(1));
    assert_eq!((limits.shares, limits.by_name.values().next().unwrap().callers()), (MAX_SHARES - 1, 2));
}
