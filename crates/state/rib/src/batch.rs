use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use fairmesh_model::Invalid;

/// Maximum number of operations in one batch.
pub const MAX_OPS: usize = 10_000;
/// Maximum size of keys and values in one batch, in bytes. A batch must fit in one etcd request, and etcd refuses
/// requests above 1.5 MB.
pub const MAX_BATCH_BYTES: usize = 1_400_000;
/// Maximum size of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = fairmesh_wire::record_encoding::MAX_VALUE;
/// Maximum size of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// Writes that are applied together or not at all, and get one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The writes. Each key occurs at most once.
    pub ops: Vec<Op>,
}

/// One write within a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key, in the form of a `RecordKey`.
    pub key: Arc<str>,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
    /// Precondition of the write.
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
    /// The key must last have been written at this revision.
    Revision(u64),
}

/// The changes of one batch. They are never split in transit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Revision of the batch, greater than all earlier revisions of the store.
    pub revision: u64,
    /// The changed keys with their new values; `None` for a deleted key.
    pub changes: Vec<(Arc<str>, Option<Bytes>)>,
}

/// A value, and the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Revision that wrote the value.
    pub revision: u64,
}

/// A write's precondition does not hold, because another writer changed the key first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} {}, but {}; the store is at revision {current}: read it again and repeat the change",
    expectation(.expected),
    found_text(.found)
)]
pub struct Conflict {
    /// Key whose precondition does not hold.
    pub key: Arc<str>,
    /// The precondition.
    pub expected: Expect,
    /// Revision that wrote the current value; `None` if the key does not exist.
    pub found: Option<u64>,
    /// Latest revision of the store.
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
    /// Creates a write of `value` without a precondition.
    pub fn put(key: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Some(value.into()), expect: Expect::Any }
    }

    /// Creates a deletion without a precondition.
    pub fn delete(key: impl Into<Arc<str>>) -> Self {
        Self { key: key.into(), value: None, expect: Expect::Any }
    }

    /// Adds a precondition to the write.
    #[must_use]
    pub fn expecting(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }
}

impl Batch {
    /// Checks the limits above, and that no key occurs twice: the order of two writes of one key would be ambiguous.
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

    /// Returns the commit of this batch, with the revision that the store assigned.
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
    fn write_batch_over_limit_is_refused_with_limit_in_error() {
        let refusal = |ops: Vec<Op>| Batch { ops }.validate().unwrap_err().to_string();
        assert!(refusal(Vec::new()).contains("10000"));
        assert!(refusal(vec![Op::put("/a", "1"), Op::delete("/a")]).contains("written twice"));
        assert!(refusal(vec![Op::put("/a", vec![0; MAX_VALUE_BYTES + 1])]).contains("ops[0].value"));
        let large = (0..6).map(|i| Op::put(format!("/{i}"), vec![0; MAX_VALUE_BYTES])).collect();
        assert!(refusal(large).contains("1400000"));
        assert!(Batch { ops: vec![Op::put("/a", "1"), Op::put("/b", "1")] }.validate().is_ok());
    }

    #[test]
    fn write_conflict_error_names_both_revisions_and_remedy() {
        let conflict =
            Conflict { key: "/a".into(), expected: Expect::Revision(7), found: Some(9), current: 12 };
        let text = conflict.to_string();
        assert!(text.contains("at revision 7") && text.contains("revision 9 wrote it"), "{text}");
        assert!(text.contains("at revision 12: read it again"), "{text}");
    }
}
