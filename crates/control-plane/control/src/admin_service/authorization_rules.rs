//! The rules of a service: a separate record, with a copy in the policy.
//!
//! Servers, agents and replicas read only the policy, and previous releases know no other place. A write of
//! either record therefore also writes the other one in the same batch, and the policy never lacks the rules.
//! Rules in a policy written by a previous release have no record of their own. They stay in force, and get a
//! record when they change.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey, RecordKind, ServiceName};
use fairmesh_rib::{Batch, Entry, Expect, Node, Op};
use fairmesh_wire::record_encoding;

use super::planned_write::DesiredRecord;

/// Returns the current value of a record. Rules that have no record of their own are taken from the policy.
pub(super) fn current(node: &Node, key: &RecordKey) -> Option<Entry> {
    let stored = node.get(&key.to_string());
    let RecordKey::Authorization(service) = key else { return stored };
    stored.or_else(|| {
        let policy = node.get(&RecordKey::Policy(service.clone()).to_string())?;
        Some(Entry { value: record_encoding::rules_of(&policy.value)?, revision: policy.revision })
    })
}

/// Adds the writes that keep policies and rules consistent. A policy without rules keeps the rules in force:
/// policy files and rules have different authors, and a file without rules must not open a service.
///
/// # Errors
/// A policy and a separate document give a service different rules.
pub(super) fn join(node: &Node, desired: Vec<DesiredRecord>) -> Result<Vec<DesiredRecord>, Invalid> {
    let of = |one: &DesiredRecord| match &one.key {
        RecordKey::Policy(service) | RecordKey::Authorization(service) => Some(service.clone()),
        _ => None,
    };
    let services: BTreeSet<ServiceName> = desired.iter().filter_map(of).collect();
    let mut joined = desired;
    for service in services {
        let keys = [RecordKey::Policy, RecordKey::Authorization].map(|key| key(service.clone()));
        let [stored_policy, stored_rules] = keys.each_ref().map(|key| current(node, key));
        let [policy, rules] = keys.each_ref().map(|key| joined.iter().position(|one| one.key == *key));
        let written = policy.map(|at| joined[at].value.clone());
        let embedded = written.as_ref().and_then(|value| record_encoding::rules_of(value.as_ref()?));
        let rules_in_force = match rules.map(|at| joined[at].value.clone()) {
            Some(own) if embedded.is_some() && embedded != own => return Err(contradiction(&service)),
            Some(own) => own,
            None => embedded.or_else(|| stored_rules.as_ref().map(|entry| entry.value.clone())),
        };
        let base = written.unwrap_or_else(|| stored_policy.as_ref().map(|entry| entry.value.clone()));
        let whole = record_encoding::with_rules(base.as_deref(), rules_in_force.as_deref());
        let [policy_key, rules_key] = keys;
        set(&mut joined, policy, (policy_key, stored_policy), whole);
        set(&mut joined, rules, (rules_key, stored_rules), rules_in_force);
    }
    Ok(joined)
}

/// Adds to a batch of raw records the writes that keep policies and rules consistent.
///
/// # Errors
/// See [`join`].
pub(crate) fn complete(node: &Node, batch: Batch) -> Result<Batch, Invalid> {
    let concerned = [RecordKind::Policy, RecordKind::Authorization];
    if !batch.ops.iter().any(|op| RecordKind::of(&op.key).is_some_and(|kind| concerned.contains(&kind))) {
        return Ok(batch);
    }
    let desired = batch.ops.into_iter().map(|Op { key, value, expect }| {
        Ok(DesiredRecord { key: RecordKey::parse(&key)?, value, expect, is_implied: false })
    });
    let joined = join(node, desired.collect::<Result<_, Invalid>>()?)?;
    let op = |one: DesiredRecord| {
        let key: Arc<str> = one.key.to_string().into();
        let stored = node.get(&key);
        let as_read = stored.as_ref().map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
        // The value may contain a copy of rules that were read, and must not undo a concurrent change of
        // these rules.
        let has_copy = matches!(one.key, RecordKey::Policy(_) | RecordKey::Authorization(_));
        let expect = match one.expect {
            Expect::Any if has_copy => as_read,
            // A policy that was derived from its rules may be created as if it were absent: an import writes
            // it after the rules.
            Expect::Absent if stored.as_ref().is_some_and(|stored| has_only_rules(&one.key, stored)) => {
                as_read
            }
            _ if one.is_implied => as_read,
            requested => requested,
        };
        let is_changed = stored.map(|entry| entry.value) != one.value;
        (is_changed || !one.is_implied).then_some(Op { key, value: one.value, expect })
    };
    Ok(Batch { ops: joined.into_iter().filter_map(op).collect() })
}

/// Whether a record is a policy that was created only to contain rules.
fn has_only_rules(key: &RecordKey, stored: &Entry) -> bool {
    let rules =
        matches!(key, RecordKey::Policy(_)).then(|| record_encoding::rules_of(&stored.value)).flatten();
    rules.is_some_and(|rules| record_encoding::with_rules(None, Some(&rules)).as_ref() == Some(&stored.value))
}

/// Sets the value of a desired record, or adds a record that was not requested. An added record is
/// conditional on the value read: a copied value must not undo another write.
fn set(
    joined: &mut Vec<DesiredRecord>,
    at: Option<usize>,
    (key, stored): (RecordKey, Option<Entry>),
    value: Option<Bytes>,
) {
    match at {
        Some(at) => joined[at].value = value,
        None => {
            let expect = stored.map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
            joined.push(DesiredRecord { key, value, expect, is_implied: true });
        }
    }
}

/// Returns the rules in the policy that servers currently read.
fn in_force(node: &Node, rules: &RecordKey) -> Option<Bytes> {
    let policy = RecordKey::Policy(rules.service()?.clone());
    record_encoding::rules_of(&node.get(&policy.to_string())?.value)
}

/// Returns the keys of rules that the desired policies would change.
pub(super) fn changed_by_policies<'a>(
    node: &'a Node,
    desired: &'a [DesiredRecord],
) -> impl Iterator<Item = &'a RecordKey> {
    let implied = desired.iter().filter(|one| one.is_implied);
    let rules = implied.filter(|one| matches!(one.key, RecordKey::Authorization(_)));
    let changed = rules.filter(|one| in_force(node, &one.key) != one.value);
    changed.map(|one| &one.key)
}

fn contradiction(service: &ServiceName) -> Invalid {
    let problem = format!("the policy of {service} has other rules than its document of kind Authorization");
    Invalid::new("authorization", problem, "leave 'authorization' out of the policy")
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{MtlsMode, Policy, Record, StoreId, spec::PolicySpec};
    use serde_json::json;

    use super::*;

    fn keys() -> [String; 2] {
        let service = ServiceName::new("shop/cart").unwrap();
        [RecordKey::Policy(service.clone()), RecordKey::Authorization(service)].map(|key| key.to_string())
    }

    /// A policy with rules, and these rules.
    fn with_rules(policy: Option<&[u8]>) -> (Bytes, Bytes) {
        let spec = json!({"service": "shop/cart", "authorization": {"rules": [{"name": "web", "from": ["shop/web"]}]}});
        let spec: PolicySpec = serde_json::from_value(spec).unwrap();
        let rules =
            record_encoding::rules_of(&record_encoding::encode(&spec.validate().unwrap().1.into())).unwrap();
        (record_encoding::with_rules(policy, Some(&rules)).unwrap(), rules)
    }

    /// A node that holds a policy and its rules.
    fn node(policy: Option<&[u8]>) -> Node {
        let (policy, rules) = with_rules(policy);
        let [policy_key, rules_key] = keys();
        let entries = [(policy_key, policy, 3), (rules_key, rules, 2)];
        let entries = entries.map(|(key, value, revision)| (key.into(), Entry { value, revision }));
        Node::load(StoreId(1), 3, entries)
    }

    #[test]
    fn raw_policy_write_requires_unchanged_authorization_rules() {
        let node = node(None);
        let value =
            record_encoding::encode(&Policy { mtls: MtlsMode::Permissive, ..Policy::default() }.into());
        let batch = complete(&node, Batch { ops: vec![Op::put(keys()[0].clone(), value)] }).unwrap();
        let expected: Vec<_> = batch.ops.iter().map(|op| (op.key.to_string(), op.expect)).collect();
        assert_eq!(expected, [(keys()[0].clone(), Expect::Revision(3))]);
        assert!(
            record_encoding::rules_of(batch.ops[0].value.as_ref().unwrap()).is_some(),
            "rules stay in force"
        );
    }

    #[test]
    fn import_may_create_policy_after_its_authorization_rules() {
        let local =
            record_encoding::encode(&Policy { mtls: MtlsMode::Permissive, ..Policy::default() }.into());
        let expect = |node: &Node| {
            let op = Op::put(keys()[0].clone(), local.clone()).expecting(Expect::Absent);
            complete(node, Batch { ops: vec![op] }).unwrap().ops[0].expect
        };
        assert_eq!(expect(&node(None)), Expect::Revision(3), "it has nothing but rules");
        assert_eq!(expect(&node(Some(&local))), Expect::Absent, "a policy of its own stays");
    }
    #[test]
    fn rewritten_policy_stays_closed_if_last_value_is_unreadable() {
        let open =
            record_encoding::encode(&Policy { mtls: MtlsMode::Permissive, ..Policy::default() }.into());
        let damaged: Bytes = [0xff].as_slice().into();
        for at in keys() {
            let entry = Entry { value: damaged.clone(), revision: 1 };
            let node = Node::load(StoreId(1), 1, [(at.into(), entry)]);
            let batch =
                complete(&node, Batch { ops: vec![Op::put(keys()[0].clone(), open.clone())] }).unwrap();
            let written = batch.ops.iter().find(|op| *op.key == *keys()[0]).unwrap();
            let key = RecordKey::parse(&written.key).unwrap();
            let Record::Policy(policy) =
                record_encoding::decode(&key, written.value.as_ref().unwrap()).unwrap()
            else {
                panic!("no policy")
            };
            assert_eq!(policy.authorization, Some(Box::default()), "no caller is allowed");
        }
    }
}
