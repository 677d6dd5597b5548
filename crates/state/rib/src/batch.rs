use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use fairmesh_model::Invalid;

/// The most operations in one batch.
pub const MAX_OPS: usize = 10_000;
/// The most bytes of keys and values in one batch. etcd refuses requests above 1.5 MB, and a batch must fit into one.
pub const MAX_BATCH_BYTES: usize = 1_400_000;
/// The most bytes of one value.
pub const MAX_VALUE_BYTES: usize = fairmesh_wire::records::MAX_VALUE;
/// The most bytes of one key.
pub const MAX_KEY_BYTES: usize = 512;

/// Writes that happen together or not at all, and get one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The writes, with each key at most once.
    pub ops: Vec<Op>,
}

/// One write within a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key, in the form of a `RecordKey`.
    pub key: Arc<str>,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// The precondition of the write.
    pub expect: Expect,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// No precondition.
    #[default]
    Any,
    /// The key must not exist.
    Absent,
    /// This revision must have written the key last.
    Revision(u64),
}

/// The changes of one batch, which are never split on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The number of the batch, greater than every earlier one of the store.
    pub revision: u64,
    /// The keys with their new values; `None` was deleted.
    pub changes: Vec<(Arc<str>, Option<Bytes>)>,
}

/// A value with the number of the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// The number of the revision that wrote it.
    pub revision: u64,
}

/// The precondition of a write failed: another writer changed the key first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} {}, but {}; the store is at revision {current}: read it again and repeat the change",
    expectation(.expected),
    found_text(.found)
)]
pub struct Conflict {
    /// The key whose precondition failed.
    pub key: Arc<str>,
    /// The precondition.
    pub expected: Expect,
    /// The revision that wrote the present value; `None` if the key does not exist.
    pub found: Option<u64>,
    /// The last revision of the store.
    pub current: u64,
}

fn expectation(expected: &Expect) -> String {
    match expected {
        Expect::Any => "was to be written".into(),
        Expect::Absent => "was expected not to exist".into(),
        Expect::Revision(revision) => format!("was expected at revision {revision}"),
    }
}

fn found_text(writer: &Option<u64>) -> String {
    match writer {
        None => "it does not exist".into(),
        Some(revision) => format!("revision {revision} wrote it"),
    }
}

impl Op {
    /// Writes `value` without a precondition.
    pub fn put(key: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Some(value.into()), expect: Expect::Any }
    }

    /// Deletes the key without a precondition.
    pub fn delete(key: impl Into<Arc<str>>) -> Self {
        Self { key: key.into(), value: None, expect: Expect::Any }
    }

    /// The same write with a precondition.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }
}

impl Batch {
    /// Checks the bounds above, and that no key is written twice: the order would be ambiguous.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.ops.is_empty() || self.ops.len() > MAX_OPS {
            let problem = format!("a batch of {} operations", self.ops.len());
            return Err(Invalid::new(
                "ops",
                problem,
                format!("send 1 to {MAX_OPS}, the rest in further batches"),
            ));
        }
        let mut keys = BTreeSet::new();
        for (i, op) in self.ops.iter().enumerate() {
            op.validate().map_err(|e| e.within(format!("ops[{i}]")))?;
            if !keys.insert(&op.key) {
                let problem = format!("{} is written twice", op.key);
                return Err(Invalid::new(format!("ops[{i}].key"), problem, "write each key once a batch"));
            }
        }
        let bytes: usize = self.ops.iter().map(Op::size).sum();
        if bytes > MAX_BATCH_BYTES {
            let hint =
                format!("keep a batch under {MAX_BATCH_BYTES} bytes: send the rest in further batches");
            return Err(Invalid::new("ops", format!("{bytes} bytes of keys and values"), hint));
        }
        Ok(())
    }

    /// The commit of this batch, with the number that the store assigned.
    pub fn into_commit(self, revision: u64) -> Commit {
        Commit { revision, changes: self.ops.into_iter().map(|op| (op.key, op.value)).collect() }
    }
}

impl Op {
    fn size(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.key.len() > MAX_KEY_BYTES {
            let problem = format!("{} bytes long", self.key.len());
            return Err(Invalid::new("key", problem, format!("keep keys under {MAX_KEY_BYTES} bytes")));
        }
        match &self.value {
            Some(value) if value.len() > MAX_VALUE_BYTES => Err(Invalid::new(
                "value",
                format!("{} is {} bytes long", self.key, value.len()),
                format!("keep values under {MAX_VALUE_BYTES} bytes, cutting large ones into chunks"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_over_a_limit_are_refused_with_the_limit() {
        let refusal = |ops: Vec<Op>| Batch { ops }.validate().unwrap_err().to_string();
        assert!(refusal(Vec::new()).contains("10000"));
        assert!(refusal(vec![Op::put("/a", "1"), Op::delete("/a")]).contains("written twice"));
        assert!(refusal(vec![Op::put("/a", vec![0; MAX_VALUE_BYTES + 1])]).contains("ops[0].value"));
        let large = (0..6).map(|i| Op::put(format!("/{i}"), vec![0; MAX_VALUE_BYTES])).collect();
        assert!(refusal(large).contains("1400000"));
        assert!(Batch { ops: vec![Op::put("/a", "1"), Op::put("/b", "1")] }.validate().is_ok());
    }

    #[test]
    fn a_conflict_names_both_revisions_and_the_remedy() {
        let conflict =
            Conflict { key: "/a".into(), expected: Expect::Revision(7), found: Some(9), current: 12 };
        let text = conflict.to_string();
        assert!(text.contains("at revision 7") && text.contains("revision 9 wrote it"), "{text}");
        assert!(text.contains("at revision 12: read it again"), "{text}");
    }
}
