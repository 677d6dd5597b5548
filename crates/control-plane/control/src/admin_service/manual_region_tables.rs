//! Manual region tables: those that a person writes into a policy. Their records change in the same batch as the policy.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{Prefix, Record, RecordKey, ServiceName, TableOrigin, Traffic};
use fairmesh_rib::{Node, Op};
use fairmesh_wire::record_encoding;

use crate::planner_facts::policy_in_force;

/// Returns the operations that make a service's tables match its policy. `None` means that the policy is deleted.
///
/// The operations are unconditional: the policy determines its tables, regardless of what a planner has written
/// meanwhile.
pub(super) fn ops(node: &Node, service: &ServiceName, policy: Option<&[u8]>) -> Vec<Op> {
    let traffic = policy.and_then(|policy| record_encoding::traffic(policy).ok().flatten());
    let wanted = traffic.iter().flat_map(Traffic::tables).map(|(from, table)| {
        let key = RecordKey::RegionTable(service.clone(), from.clone());
        (key.to_string(), record_encoding::encode(&Record::RegionTable(table)))
    });
    let mut wanted: BTreeMap<String, Bytes> = wanted.collect();
    let in_force = policy_in_force(node, service, policy).traffic;
    let keeps_planned = in_force.publishes() && in_force.is_planned();
    let mut ops = Vec::new();
    for (key, entry) in node.read(&[Prefix::tables(service)]).1 {
        match wanted.remove(&*key) {
            Some(value) if value == entry.value => {}
            Some(value) => ops.push(Op::put(key, value)),
            None if keeps_planned && is_planned(&key, &entry.value) => {}
            None => ops.push(Op::delete(key)),
        }
    }
    ops.extend(wanted.into_iter().map(|(key, value)| Op::put(key, value)));
    ops
}

fn is_planned(key: &str, value: &[u8]) -> bool {
    let record = RecordKey::parse(key).and_then(|key| record_encoding::decode(&key, value));
    matches!(record, Ok(Record::RegionTable(table)) if table.origin != TableOrigin::ByHand)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairmesh_model::{
        Confirmation, Policy, Region, RegionShares, RegionTable, Share, StoreId, TrafficMode, TrafficPlanner,
        TrafficShares,
    };
    use fairmesh_rib::Entry;

    use super::*;

    fn cart() -> ServiceName {
        ServiceName::new("shop/cart").unwrap()
    }

    fn key(from: &str) -> Arc<str> {
        RecordKey::RegionTable(cart(), Region::new(from).unwrap()).to_string().into()
    }

    fn shares(to: &str) -> TrafficShares {
        let to = [(Region::new(to).unwrap(), Share::ALL)].into();
        TrafficShares { default: Some(RegionShares { to, dropped: Share::NONE }), ..TrafficShares::default() }
    }

    fn table(to: &str, origin: TableOrigin) -> Bytes {
        record_encoding::encode(&Record::RegionTable(RegionTable::new(shares(to), origin)))
    }

    fn planned(to: &str) -> Bytes {
        table(to, TableOrigin::Planned(Confirmation { round: 1, at_ms: 2 }))
    }

    fn node(tables: &[(&str, Bytes)]) -> Node {
        let entries =
            tables.iter().map(|(from, value)| (key(from), Entry { value: value.clone(), revision: 1 }));
        Node::load(StoreId(1), 1, entries)
    }

    fn policy(traffic: Option<Traffic>) -> Bytes {
        let traffic = traffic.map(Box::new);
        record_encoding::encode(&Record::Policy(Policy { traffic, ..Policy::default() }))
    }

    fn by_hand(from: &[(&str, &str)]) -> Traffic {
        let shares = from.iter().map(|(from, to)| (Region::new(*from).unwrap(), shares(to)));
        Traffic { shares: shares.collect(), ..Traffic::default() }
    }

    #[test]
    fn manual_region_tables_replace_existing_ones() {
        let before = node(&[("eu", table("us", TableOrigin::ByHand)), ("us", planned("eu"))]);
        let wanted = policy(Some(by_hand(&[("eu", "eu"), ("ap", "eu")])));
        let hand = |to| table(to, TableOrigin::ByHand);
        let written = ops(&before, &cart(), Some(&wanted));
        assert_eq!(
            written,
            [Op::put(key("eu"), hand("eu")), Op::delete(key("us")), Op::put(key("ap"), hand("eu"))]
        );
        let after = node(&[("eu", hand("eu")), ("ap", hand("eu"))]);
        assert_eq!(ops(&after, &cart(), Some(&wanted)), [], "nothing changes");
        let shadow = Traffic { mode: TrafficMode::Shadow, ..by_hand(&[("eu", "eu")]) };
        for none in [Some(policy(None)), Some(policy(Some(shadow))), None] {
            let written = ops(&after, &cart(), none.as_deref());
            assert_eq!(written, [Op::delete(key("ap")), Op::delete(key("eu"))]);
        }
    }

    #[test]
    fn policy_with_planner_keeps_planned_tables() {
        let before = node(&[("eu", table("us", TableOrigin::ByHand)), ("us", planned("eu"))]);
        let of =
            |mode| policy(Some(Traffic { planner: Some(TrafficPlanner::Rings), mode, ..Traffic::default() }));
        let written = ops(&before, &cart(), Some(&of(TrafficMode::Active)));
        assert_eq!(written, [Op::delete(key("eu"))]);
        let written = ops(&before, &cart(), Some(&of(TrafficMode::Shadow)));
        assert_eq!(written, [Op::delete(key("eu")), Op::delete(key("us"))]);
    }
}
