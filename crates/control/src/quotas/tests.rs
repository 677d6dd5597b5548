use bytes::Bytes;
use fairmesh_model::{
    Policy, RateLimit, Record, RecordKey, Scope, StoreId,
    quota::{ALL_PARTS, DEFAULT_PARTS},
};
use fairmesh_rib::Commit;
use fairmesh_wire::records;

use super::*;

/// A control plane whose `shop/one` has a limit of 100 calls a second for the whole mesh, and `shop/two` one for each caller.
fn quotas() -> Quotas {
    let node = Node::new(StoreId(7));
    let policy = |scope| {
        let limit = RateLimit { calls: 100, per: Duration::from_secs(1), burst: 10, scope };
        records::encode(&Record::Policy(Policy { limit: Some(limit), ..Policy::default() }))
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

fn ask(quotas: &Quotas, caller: u64, demand: v1::Demand) -> Option<u32> {
    quotas.divide(v1::ClaimRequest { caller, demands: vec![demand] }).unwrap().parts[0].parts
}

#[tokio::test(start_paused = true)]
async fn after_a_start_no_part_is_given_out_until_those_who_claim_seldom_have_claimed() {
    for (callers, settled) in [(10, SETTLING), (6_000, LONG_SETTLING)] {
        let quotas = quotas();
        let claim = |caller| ask(&quotas, caller, demand("shop/one", 100, Some(1_000)));
        for caller in 0..callers {
            assert_eq!(claim(caller), None);
        }
        tokio::time::advance(settled - Duration::from_millis(1)).await;
        assert_eq!(claim(0), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(claim(0) > Some(1_000), "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn only_limits_that_a_policy_declares_for_the_mesh_are_divided() {
    let quotas = quotas();
    tokio::time::advance(SETTLING).await;
    for invented in 0..MAX_LIMITS + 10 {
        let name = format!("shop/invented-{invented}");
        assert_eq!(ask(&quotas, 1, demand(&name, u64::MAX, Some(ALL_PARTS))), None);
    }
    assert_eq!(ask(&quotas, 1, demand("shop/two", 1_000, None)), None);
    assert!(ask(&quotas, 2, demand("shop/one", 50_000, None)) > Some(DEFAULT_PARTS));
    let size = quotas.size();
    assert_eq!((size.limits, size.shares, size.undeclared), (1, 1, MAX_LIMITS as u64 + 11));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_declared_no_longer_is_forgotten() {
    let quotas = quotas();
    tokio::time::advance(SETTLING).await;
    assert!(ask(&quotas, 1, demand("shop/one", 50_000, None)).is_some());
    let key = RecordKey::Policy("shop/one".parse().unwrap()).to_string();
    quotas.shared.node.apply(Commit { revision: 2, changes: vec![(key.into(), None)] });
    assert_eq!(ask(&quotas, 1, demand("shop/one", 50_000, None)), None);
    let sweeping = tokio::spawn(quotas.clone().sweep());
    tokio::time::advance(Duration::from_millis(1)).await;
    while quotas.size().limits > 0 {
        tokio::task::yield_now().await;
    }
    sweeping.abort();
}
