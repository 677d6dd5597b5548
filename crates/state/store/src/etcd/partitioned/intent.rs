//! Write-ahead intents: the operations of a batch in other partitions than the home.
//!
//! An intent is written in the home partition together with the home's own records, which commits the batch. The
//! holder of the writer lease then applies the intent. Two-phase commit with votes of all partitions was rejected:
//! with a single writer, conditions that hold when checked still hold when written.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use fairmesh_rib::{Expect, Op};

use super::super::key_layout::Layout;

/// Key of the intent of batch `number`. Each key is used once, so that deleting it twice is harmless.
pub(super) fn key(layout: &Layout, number: u64) -> Bytes {
    layout.meta_key(&format!("intent/{number:016x}"))
}

/// Encodes operations by partition.
pub(super) fn encode(parts: &[(&usize, &Vec<Op>)]) -> Bytes {
    let mut text = Vec::new();
    for (part, op) in parts.iter().flat_map(|(part, ops)| ops.iter().map(move |op| (part, op))) {
        text.put_u32(u32::try_from(**part).unwrap_or(u32::MAX));
        text.put_u16(u16::try_from(op.key.len()).unwrap_or(u16::MAX));
        text.put_slice(op.key.as_bytes());
        text.put_u8(op.value.is_some().into());
        let value = op.value.as_deref().unwrap_or_default();
        text.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        text.put_slice(value);
    }
    text.into()
}

/// Decodes the result of [`encode`]; `None` if malformed.
pub(super) fn decode(mut text: Bytes) -> Option<Vec<(usize, Op)>> {
    let mut ops = Vec::new();
    while text.has_remaining() {
        let part = text.try_get_u32().ok()? as usize;
        let key = u64::from(text.try_get_u16().ok()?);
        let key: Arc<str> = std::str::from_utf8(&take(&mut text, key)?).ok()?.into();
        let there = text.try_get_u8().ok()? == 1;
        let value = text.try_get_u32().ok()?;
        let value = take(&mut text, value.into())?;
        ops.push((part, Op { key, value: there.then_some(value), expect: Expect::Any }));
    }
    Some(ops)
}

fn take(text: &mut Bytes, length: u64) -> Option<Bytes> {
    let length = usize::try_from(length).ok()?;
    (length <= text.len()).then(|| text.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_intent_round_trips_and_truncated_one_is_refused() {
        let ops = [vec![Op::put("/a", "1"), Op::delete("/b")], vec![Op::put("/c", "")]];
        let text = encode(&[(&1, &ops[0]), (&7, &ops[1])]);
        let all: Vec<_> = [1, 1, 7].into_iter().zip(ops.concat()).collect();
        assert_eq!(decode(text.clone()), Some(all));
        assert_eq!(decode(text.slice(..text.len() - 1)), None);
    }
}
