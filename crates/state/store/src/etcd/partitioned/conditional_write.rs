//! Conditions and writes of one transaction in one partition.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use fairmesh_rib::{Entry, Expect, Op};

use super::super::{
    key_layout::{Layout, signed},
    proto::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnResponse, compare,
        request_op, response_op,
    },
    txn::request_op,
};

/// Byte between the revision and the value of a record. Another byte would mean another record format.
const RECORD_TAG: u8 = 1;

/// Writes with the conditions under which they are applied.
#[derive(Clone, Debug, Default)]
pub(super) struct ConditionalWrite {
    /// Record keys with their expectations; never [`Expect::Any`].
    conditions: Vec<(Bytes, Expect)>,
    writes: Vec<(Bytes, Option<Bytes>)>,
}

/// A condition that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnmetCondition {
    /// Index of the condition.
    pub(super) condition: usize,
    /// Current revision of the record.
    pub(super) found: Option<u64>,
}

impl ConditionalWrite {
    /// Creates unconditional writes of the operations under the revision `number`.
    pub(super) fn puts(layout: &Layout, ops: &[Op], number: u64) -> Self {
        let write = |op: &Op| {
            (layout.record_key(&op.key), op.value.as_deref().map(|value| encode_record(number, value)))
        };
        Self { conditions: Vec::new(), writes: ops.iter().map(write).collect() }
    }

    /// Adds the expectations of the operations as conditions.
    pub(super) fn with_conditions(mut self, layout: &Layout, ops: &[Op]) -> Self {
        let expected = ops.iter().filter(|op| op.expect != Expect::Any);
        self.conditions = expected.map(|op| (layout.record_key(&op.key), op.expect)).collect();
        self
    }

    /// Creates unconditional writes of verbatim keys and values.
    pub(super) fn raw(writes: Vec<(Bytes, Option<Bytes>)>) -> Self {
        Self { conditions: Vec::new(), writes }
    }

    /// Adds a write; `None` deletes the key.
    pub(super) fn with_write(mut self, key: Bytes, value: Option<Bytes>) -> Self {
        self.writes.push((key, value));
        self
    }

    /// Drops the writes and keeps the conditions.
    pub(super) fn only_conditions(self) -> Self {
        Self { writes: Vec::new(), ..self }
    }

    pub(super) fn compares(&self) -> impl Iterator<Item = Compare> {
        self.conditions.iter().flat_map(|(key, expect)| expectation_compares(key, *expect))
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = RequestOp> {
        self.writes.iter().map(|(key, value)| match value {
            Some(value) => put(key.clone(), value.clone()),
            None => delete(key.clone(), Bytes::new()),
        })
    }

    /// Returns requests that read the records of the conditions.
    pub(super) fn reads(&self) -> impl Iterator<Item = RequestOp> {
        self.conditions.iter().map(|(key, _)| read(key.clone()))
    }

    /// Returns the first condition that does not hold, judged by the values read.
    pub(super) fn unmet(&self, mut found: impl Iterator<Item = Option<KeyValue>>) -> Option<UnmetCondition> {
        self.conditions.iter().enumerate().find_map(|(condition, (_, expect))| {
            let found = found.next().flatten().and_then(|kv| Some(decode_record(kv.value)?.0));
            let met = match expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(number) => found == Some(*number),
            };
            (!met).then_some(UnmetCondition { condition, found })
        })
    }
}

/// Encodes a record with its revision, which differs from etcd's revision.
pub(super) fn encode_record(number: u64, value: &[u8]) -> Bytes {
    [&number.to_be_bytes()[..], &[RECORD_TAG], value].concat().into()
}

/// Decodes a record to its revision and value.
pub(super) fn decode_record(mut value: Bytes) -> Option<(u64, Bytes)> {
    let number = value.try_get_u64().ok()?;
    (value.try_get_u8().ok()? == RECORD_TAG).then_some((number, value))
}

/// Decodes a record and its key.
pub(super) fn decode_entry(layout: &Layout, kv: KeyValue) -> Option<(Arc<str>, Entry)> {
    let key = Arc::from(layout.parse_record_key(&kv.key)?);
    let (revision, value) = decode_record(kv.value)?;
    Some((key, Entry { value: Bytes::copy_from_slice(&value), revision }))
}

fn expectation_compares(key: &Bytes, expect: Expect) -> Vec<Compare> {
    match expect {
        Expect::Any => Vec::new(),
        Expect::Absent => vec![absent_compare(key.clone())],
        // All values with this revision sort between the revision and its successor.
        Expect::Revision(number) => vec![
            value_compare(key.clone(), compare::Result::Greater, number.to_be_bytes().to_vec()),
            value_compare(
                key.clone(),
                compare::Result::Less,
                number.saturating_add(1).to_be_bytes().to_vec(),
            ),
        ],
    }
}

/// Requires that the key is absent.
pub(super) fn absent_compare(key: Bytes) -> Compare {
    Compare {
        target: compare::Target::Create.into(),
        key,
        operand: Some(compare::Operand::CreateRevision(0)),
        ..Compare::default()
    }
}

/// Requires that the key was created at this revision of the cluster.
pub(super) fn created_compare(key: Bytes, revision: u64) -> Compare {
    let operand = Some(compare::Operand::CreateRevision(signed(revision)));
    Compare { target: compare::Target::Create.into(), key, operand, ..Compare::default() }
}

/// Compares the value of a key. The comparison fails for an absent key.
pub(super) fn value_compare(key: Bytes, result: compare::Result, than: Vec<u8>) -> Compare {
    Compare {
        result: result.into(),
        target: compare::Target::Value.into(),
        key,
        operand: Some(compare::Operand::Value(than.into())),
    }
}

pub(super) fn put(key: Bytes, value: Bytes) -> RequestOp {
    request_op(request_op::Request::Put(PutRequest { key, value, lease: 0 }))
}

/// Deletes a key, or a range of keys.
pub(super) fn delete(key: Bytes, range_end: Bytes) -> RequestOp {
    request_op(request_op::Request::DeleteRange(DeleteRangeRequest { key, range_end }))
}

pub(super) fn read(key: Bytes) -> RequestOp {
    request_op(request_op::Request::Range(RangeRequest { key, ..RangeRequest::default() }))
}

/// Returns the values read by a transaction, in order.
pub(super) fn read_results(response: TxnResponse) -> impl Iterator<Item = Option<KeyValue>> {
    response.responses.into_iter().map(|op| match op.response {
        Some(response_op::Response::Range(range)) => range.kvs.into_iter().next(),
        None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_record_values_sort_by_revision() {
        for value in [&b""[..], b"\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            let stored = encode_record(7, value);
            assert!(stored[..] > 7_u64.to_be_bytes()[..] && stored[..] < 8_u64.to_be_bytes()[..]);
            assert_eq!(decode_record(stored), Some((7, Bytes::copy_from_slice(value))));
        }
        assert_eq!(decode_record(Bytes::from_static(b"\0\0\0\0\0\0\0\x07\x02later")), None);
        assert_eq!(decode_record(Bytes::from_static(b"short")), None);
    }
}
