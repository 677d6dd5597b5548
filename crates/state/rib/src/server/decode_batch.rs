use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey};
use fairmesh_wire::{record_encoding, v1};

use crate::{Batch, Expect, Op};

/// Decodes a batch, and checks its limits and the value of every key, because written values reach routers.
pub(super) fn decode_batch(request: v1::WriteRequest) -> Result<Batch, Invalid> {
    let ops = request.ops.into_iter().enumerate();
    let ops = ops
        .map(|(i, op)| decode_op(op).map_err(|e| e.within(format!("ops[{i}]"))))
        .collect::<Result<_, _>>()?;
    let batch = Batch { ops };
    batch.validate()?;
    Ok(batch)
}

fn decode_op(op: v1::Op) -> Result<Op, Invalid> {
    use v1::condition::Kind;
    match &op.value {
        Some(value) => record_encoding::check(&op.key, value)?,
        None => RecordKey::parse(&op.key)?,
    };
    let expect = match op.condition {
        None => Expect::Any,
        Some(v1::Condition { kind: Some(Kind::Absent(true)) }) => Expect::Absent,
        Some(v1::Condition { kind: Some(Kind::Revision(revision)) }) => Expect::Revision(revision),
        // An unknown condition from a newer release must not count as no condition, because this would overwrite a
        // protected value.
        Some(_) => {
            let hint = "send 'absent: true', a revision, or no condition";
            return Err(Invalid::new("condition", "is unknown to this release", hint));
        }
    };
    // Copied, because a slice would keep the whole request in memory.
    let value = op.value.as_deref().map(Bytes::copy_from_slice);
    Ok(Op { key: op.key.into(), value, expect })
}
