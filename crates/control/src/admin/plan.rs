//! From what an operator wants to the writes that bring it about, all or none.

use std::collections::BTreeSet;

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey};
use fairmesh_registry::adopt_declaration;
use fairmesh_rib::{Batch, Conflict, Entry, Expect, Node, Op, server::WriteError};
use fairmesh_wire::{
    records,
    v1::{self, condition, outcome::Kind},
};

use super::history;

/// What one record should become.
#[derive(Debug)]
pub(super) struct Wish {
    key: RecordKey,
    /// `None` deletes it.
    value: Option<Bytes>,
    expect: Expect,
}

/// Who changes something, and when.
#[derive(Debug)]
pub(super) struct Author {
    pub(super) by: String,
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
}

/// What is to be written, and what that does to each record that was named.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) batch: Batch,
    pub(super) outcomes: Vec<v1::Outcome>,
}

impl Wish {
    /// Whatever stands there now.
    pub(super) fn new(key: RecordKey, value: Option<Bytes>) -> Self {
        Self { key, value, expect: Expect::Any }
    }
}

/// Checks everything that was sent before anything is done with it; takes long where policies have costly expressions.
pub(super) fn wishes(ops: Vec<v1::Op>) -> Result<Vec<Wish>, Invalid> {
    let mut seen = BTreeSet::new();
    let mut wishes = Vec::with_capacity(ops.len());
    for (i, op) in ops.into_iter().enumerate() {
        let wish = wish(op).map_err(|e| e.within(format!("ops[{i}]")))?;
        if !seen.insert(wish.key.clone()) {
            let problem = format!("{} is there twice", wish.key);
            return Err(Invalid::new(format!("ops[{i}].key"), problem, "name each record once"));
        }
        wishes.push(wish);
    }
    Ok(wishes)
}

fn wish(op: v1::Op) -> Result<Wish, Invalid> {
    let key = RecordKey::parse(&op.key)?;
    let written_here = matches!(
        key,
        RecordKey::Service(_)
            | RecordKey::Policy(_)
            | RecordKey::Regions
            | RecordKey::RoundTrips
            | RecordKey::Hosts
    );
    if !written_here {
        let problem = format!("{key} is not configuration");
        let hint = "apply services, policies, topology and hosts; register endpoints and shard maps with the registry";
        return Err(Invalid::new("key", problem, hint));
    }
    // In the one encoding of each record, so that equal bytes mean that nothing changes.
    let value = op.value.map(|value| {
        let record = records::decode(&key, &value)?;
        // While the record is here, so that its expressions are compiled once.
        records::check(&op.key, &value)?;
        Ok(records::encode(&record))
    });
    Ok(Wish { value: value.transpose()?, expect: expect(op.condition)?, key })
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

/// Compares wishes with what stands in the node, and plans what to write.
pub(super) fn plan(node: &Node, wishes: Vec<Wish>, author: &Author) -> Result<Plan, WriteError> {
    let read_at = node.revision().number;
    let mut plan = Plan { batch: Batch::default(), outcomes: Vec::with_capacity(wishes.len()) };
    for wish in wishes {
        let key = wish.key.to_string();
        let current = node.get(&key);
        expected(&wish, &key, current.as_ref(), read_at)?;
        let kind = match (&current, &wish.value) {
            (None, None) => Kind::Unchanged,
            (Some(entry), Some(value)) if entry.value == *value => Kind::Unchanged,
            (None, Some(_)) => Kind::Created,
            (Some(_), Some(_)) => Kind::Changed,
            (Some(_), None) => Kind::Deleted,
        };
        plan.outcomes.push(v1::Outcome { key: key.clone(), kind: kind.into() });
        if let (Kind::Unchanged, Some(_), RecordKey::Service(service)) = (kind, &wish.value, &wish.key) {
            plan.batch.ops.extend(adopt_declaration(node, service));
        }
        if kind != Kind::Unchanged {
            let expect = current.as_ref().map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
            plan.batch.ops.push(Op { key: key.into(), value: wish.value, expect });
            plan.batch.ops.extend(history::keep(node, &wish.key, current, read_at, author));
        }
    }
    if !plan.batch.ops.is_empty() {
        plan.batch.validate()?;
    }
    Ok(plan)
}

/// Refuses at once what the store would refuse: the writer saw another state than the node has.
fn expected(wish: &Wish, key: &str, current: Option<&Entry>, read_at: u64) -> Result<(), Conflict> {
    let found = current.map(|entry| entry.revision);
    let met = match wish.expect {
        Expect::Any => true,
        Expect::Absent => found.is_none(),
        Expect::Revision(revision) => found == Some(revision),
    };
    if met {
        Ok(())
    } else {
        Err(Conflict { key: key.into(), expected: wish.expect, found, current: read_at })
    }
}
