use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey};
use fairmesh_wire::{records, v1};

use crate::{Batch, Expect, Op};

/// Reads a batch and checks its bounds, and that every key holds what belongs there: whatever is written reaches routers.
pub(super) fn read(request: v1::WriteRequest) -> Result<Batch, Invalid> {
    let ops = request.ops.into_iter().enumerate();
    let ops = ops
        .map(|(i, op)| read_op(op).map_err(|e| e.within(format!("ops[{i}]"))))
        .collect::<Result<_, _>>()?;
    let batch = Batch { ops };
    batch.validate()?;
    Ok(batch)
}

fn read_op(op: v1::Op) -> Result<Op, Invalid> {
    use v1::condition::Kind;
    match &op.value {
        Some(value) => records::check(&op.key, value)?,
        None => RecordKey::parse(&op.key)?,
    };
    let expect = match op.condition {
        None => Expect::Any,
        Some(v1::Condition { kind: Some(Kind::Absent(true)) }) => Expect::Absent,
        Some(v1::Condition { kind: Some(Kind::Revision(revision)) }) => Expect::Revision(revision),
        // Taking an unknown condition for none would write over what a newer release wants to protect.
        Some(_) => {
            let hint = "send 'absent: true', a revision, or no condition";
            return Err(Invalid::new("condition", "is not known here", hint));
        }
    };
    // A copy, since what was decoded is a slice of the whole request: as long as one of its values stood somewhere, all the bytes
    // of the request would stay in memory.
    let value = op.value.as_deref().map(Bytes::copy_from_slice);
    Ok(Op { key: op.key.into(), value, expect })
}
