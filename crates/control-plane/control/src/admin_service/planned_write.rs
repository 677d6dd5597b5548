//! Plans the writes of an apply request. All of them are made, or none.

use std::collections::BTreeSet;

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey};
use fairmesh_registry::adopt_declaration;
use fairmesh_rib::{Batch, Conflict, Entry, Expect, Node, Op, server::WriteError};
use fairmesh_wire::{
    record_encoding,
    v1::{self, condition, outcome::Kind},
};

use super::{authorization_rules, config_history, manual_region_tables};

/// The desired value of one record.
#[derive(Debug)]
pub(super) struct DesiredRecord {
    pub(super) key: RecordKey,
    /// The value; `None` deletes the record.
    pub(super) value: Option<Bytes>,
    pub(super) expect: Expect,
    /// Whether the value was derived from another record rather than requested.
    pub(super) is_implied: bool,
}

/// Author and time of a change.
#[derive(Debug)]
pub(super) struct Author {
    pub(super) by: String,
    /// Time of the change, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// Reason given by the author.
    pub(super) message: String,
}

/// The batch to write, and the outcome for each requested record.
#[derive(Debug)]
pub(super) struct PlannedWrite {
    pub(super) batch: Batch,
    pub(super) outcomes: Vec<v1::Outcome>,
}

impl DesiredRecord {
    /// A desired value without a condition on the current value.
    pub(super) fn new(key: RecordKey, value: Option<Bytes>) -> Self {
        Self { key, value, expect: Expect::Any, is_implied: false }
    }
}

/// Parses and validates the whole request. Slow if policies have costly expressions.
pub(super) fn parse_ops(ops: Vec<v1::Op>) -> Result<Vec<DesiredRecord>, Invalid> {
    let mut seen = BTreeSet::new();
    let mut desired = Vec::with_capacity(ops.len());
    for (i, op) in ops.into_iter().enumerate() {
        let wanted = parse_op(op).map_err(|e| e.within(format!("ops[{i}]")))?;
        if !seen.insert(wanted.key.clone()) {
            let problem = format!("{} appears twice", wanted.key);
            return Err(Invalid::new(format!("ops[{i}].key"), problem, "name each record once"));
        }
        desired.push(wanted);
    }
    Ok(desired)
}

fn parse_op(op: v1::Op) -> Result<DesiredRecord, Invalid> {
    let key = RecordKey::parse(&op.key)?;
    if !key.kind().rules().is_applied {
        let problem = format!("{key} is not configuration");
        let hint = "apply services, policies, workloads, authorization, role bindings, topology and hosts; endpoints and shard maps belong to the registry";
        return Err(Invalid::new("key", problem, hint));
    }
    // Encoded canonically, so that equal bytes mean an unchanged record.
    let value = op.value.map(|value| {
        let record = record_encoding::decode(&key, &value)?;
        // Checked while the record is decoded, so that its expressions are compiled only once.
        record_encoding::check(&op.key, &value)?;
        Ok(record_encoding::encode(&record))
    });
    Ok(DesiredRecord { value: value.transpose()?, expect: expect(op.condition)?, key, is_implied: false })
}

fn expect(condition: Option<v1::Condition>) -> Result<Expect, Invalid> {
    match condition.and_then(|condition| condition.kind) {
        None => Ok(Expect::Any),
        Some(condition::Kind::Absent(true)) => Ok(Expect::Absent),
        Some(condition::Kind::Revision(revision)) => Ok(Expect::Revision(revision)),
        Some(condition::Kind::Absent(false)) => {
            Err(Invalid::new("condition", "'absent' is false", "leave the condition out, or give a revision"))
        }
    }
}

/// Compares the desired records with the node, and plans the writes.
pub(super) fn plan(
    node: &Node,
    desired: Vec<DesiredRecord>,
    author: &Author,
) -> Result<PlannedWrite, WriteError> {
    let read_at = node.revision().number;
    let mut plan = PlannedWrite { batch: Batch::default(), outcomes: Vec::with_capacity(desired.len()) };
    for wanted in desired {
        let key = wanted.key.to_string();
        let stored = node.get(&key);
        let current = authorization_rules::current(node, &wanted.key);
        check_condition(&wanted, &key, current.as_ref(), read_at)?;
        let kind = match (&current, &wanted.value) {
            (None, None) => Kind::Unchanged,
            (Some(entry), Some(value)) if entry.value == *value => Kind::Unchanged,
            (None, Some(_)) => Kind::Created,
            (Some(_), Some(_)) => Kind::Changed,
            (Some(_), None) => Kind::Deleted,
        };
        if !wanted.is_implied {
            plan.outcomes.push(v1::Outcome { key: key.clone(), kind: kind.into() });
        }
        if let (Kind::Unchanged, Some(_), RecordKey::Service(service)) = (kind, &wanted.value, &wanted.key) {
            plan.batch.ops.extend(adopt_declaration(node, service));
        }
        if let RecordKey::Policy(service) = &wanted.key {
            plan.batch.ops.extend(manual_region_tables::ops(node, service, wanted.value.as_deref()));
        }
        if kind != Kind::Unchanged {
            let expect = stored.as_ref().map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
            let written = (&wanted.key, wanted.value.as_ref());
            let saved = config_history::save_ops(node, written, current, read_at, author);
            plan.batch.ops.push(Op { key: key.into(), value: wanted.value, expect });
            plan.batch.ops.extend(saved);
        }
    }
    if !plan.batch.ops.is_empty() {
        plan.batch.validate()?;
    }
    Ok(plan)
}

/// Returns the conflict that the store would report if the writer's view differs from the node.
fn check_condition(
    wanted: &DesiredRecord,
    key: &str,
    current: Option<&Entry>,
    read_at: u64,
) -> Result<(), Conflict> {
    let found = current.map(|entry| entry.revision);
    let met = match wanted.expect {
        Expect::Any => true,
        Expect::Absent => found.is_none(),
        Expect::Revision(revision) => found == Some(revision),
    };
    if met {
        Ok(())
    } else {
        Err(Conflict { key: key.into(), expected: wanted.expect, found, current: read_at })
    }
}
