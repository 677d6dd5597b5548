//! What one transaction in one part does, and what etcd says of it.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use fairmesh_rib::{Entry, Expect, Op};

use super::super::{
    layout::{Layout, signed},
    proto::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnResponse, compare,
        request_op, response_op,
    },
    write::operation,
};

/// What stands between the number and the value of a record; another byte would be another form of record.
const PLAIN: u8 = 1;

/// What is to be written if conditions hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Records with what is expected there; never [`Expect::Any`].
    conditions: Vec<(Bytes, Expect)>,
    writes: Vec<(Bytes, Option<Bytes>)>,
}

/// A condition that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmet {
    /// Which one.
    pub(super) condition: usize,
    /// The number of what is there.
    pub(super) found: Option<u64>,
}

impl Change {
    /// Writes under a number, whatever is there.
    pub(super) fn of(layout: &Layout, ops: &[Op], number: u64) -> Self {
        let write =
            |op: &Op| (layout.record(&op.key), op.value.as_deref().map(|value| numbered(number, value)));
        Self { conditions: Vec::new(), writes: ops.iter().map(write).collect() }
    }

    /// The same if what the operations expect is there.
    pub(super) fn expecting(mut self, layout: &Layout, ops: &[Op]) -> Self {
        let expected = ops.iter().filter(|op| op.expect != Expect::Any);
        self.conditions = expected.map(|op| (layout.record(&op.key), op.expect)).collect();
        self
    }

    /// Writes what stands elsewhere, as it stands there.
    pub(super) fn raw(writes: Vec<(Bytes, Option<Bytes>)>) -> Self {
        Self { conditions: Vec::new(), writes }
    }

    /// Writes a key more.
    pub(super) fn and(mut self, key: Bytes, value: Option<Bytes>) -> Self {
        self.writes.push((key, value));
        self
    }

    /// The conditions alone.
    pub(super) fn conditions(self) -> Self {
        Self { writes: Vec::new(), ..self }
    }

    pub(super) fn compare(&self) -> impl Iterator<Item = Compare> {
        self.conditions.iter().flat_map(|(key, expect)| expected(key, *expect))
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = RequestOp> {
        self.writes.iter().map(|(key, value)| match value {
            Some(value) => put(key.clone(), value.clone()),
            None => delete(key.clone(), Bytes::new()),
        })
    }

    /// Reads what the conditions are about.
    pub(super) fn reads(&self) -> impl Iterator<Item = RequestOp> {
        self.conditions.iter().map(|(key, _)| read(key.clone()))
    }

    /// The first condition that does not hold, of what was read.
    pub(super) fn unmet(&self, mut found: impl Iterator<Item = Option<KeyValue>>) -> Option<Unmet> {
        self.conditions.iter().enumerate().find_map(|(condition, (_, expect))| {
            let found = found.next().flatten().and_then(|kv| Some(plain(kv.value)?.0));
            let met = match expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(number) => found == Some(*number),
            };
            (!met).then_some(Unmet { condition, found })
        })
    }
}

/// A record as it stands in etcd: with its number, which is none of etcd's.
pub(super) fn numbered(number: u64, value: &[u8]) -> Bytes {
    [&number.to_be_bytes()[..], &[PLAIN], value].concat().into()
}

/// The number and the value of a record.
pub(super) fn plain(mut value: Bytes) -> Option<(u64, Bytes)> {
    let number = value.try_get_u64().ok()?;
    (value.try_get_u8().ok()? == PLAIN).then_some((number, value))
}

/// A record with its key, from what stands in etcd.
pub(super) fn entry(layout: &Layout, kv: KeyValue) -> Option<(Arc<str>, Entry)> {
    let key = Arc::from(layout.record_at(&kv.key)?);
    let (revision, value) = plain(kv.value)?;
    Some((key, Entry { value: Bytes::copy_from_slice(&value), revision }))
}

fn expected(key: &Bytes, expect: Expect) -> Vec<Compare> {
    match expect {
        Expect::Any => Vec::new(),
        Expect::Absent => vec![absent(key.clone())],
        // All values with this number lie between it and the next.
        Expect::Revision(number) => vec![
            value(key.clone(), compare::Result::Greater, number.to_be_bytes().to_vec()),
            value(key.clone(), compare::Result::Less, number.saturating_add(1).to_be_bytes().to_vec()),
        ],
    }
}

/// Nothing is there.
pub(super) fn absent(key: Bytes) -> Compare {
    Compare {
        target: compare::Target::Create.into(),
        key,
        operand: Some(compare::Operand::CreateRevision(0)),
        ..Compare::default()
    }
}

/// It was created by this revision of the cluster.
pub(super) fn created(key: Bytes, revision: u64) -> Compare {
    let operand = Some(compare::Operand::CreateRevision(signed(revision)));
    Compare { target: compare::Target::Create.into(), key, operand, ..Compare::default() }
}

/// How the value that is there compares; where nothing is, it does not.
pub(super) fn value(key: Bytes, result: compare::Result, than: Vec<u8>) -> Compare {
    Compare {
        result: result.into(),
        target: compare::Target::Value.into(),
        key,
        operand: Some(compare::Operand::Value(than.into())),
    }
}

pub(super) fn put(key: Bytes, value: Bytes) -> RequestOp {
    operation(request_op::Request::Put(PutRequest { key, value, lease: 0 }))
}

/// Deletes a key, or with an end all keys before that.
pub(super) fn delete(key: Bytes, range_end: Bytes) -> RequestOp {
    operation(request_op::Request::DeleteRange(DeleteRangeRequest { key, range_end }))
}

pub(super) fn read(key: Bytes) -> RequestOp {
    operation(request_op::Request::Range(RangeRequest { key, ..RangeRequest::default() }))
}

/// What the reads of a transaction found, in order.
pub(super) fn found(answer: TxnResponse) -> impl Iterator<Item = Option<KeyValue>> {
    answer.responses.into_iter().map(|op| match op.response {
        Some(response_op::Response::Range(range)) => range.kvs.into_iter().next(),
        None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_number_lie_between_it_and_the_next() {
        for value in [&b""[..], b"\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            let stands = numbered(7, value);
            assert!(stands[..] > 7_u64.to_be_bytes()[..] && stands[..] < 8_u64.to_be_bytes()[..]);
            assert_eq!(plain(stands), Some((7, Bytes::copy_from_slice(value))));
        }
        assert_eq!(plain(Bytes::from_static(b"\0\0\0\0\0\0\0\x07\x02later")), None);
        assert_eq!(plain(Bytes::from_static(b"short")), None);
    }
}
