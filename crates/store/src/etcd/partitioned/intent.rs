//! What a batch over several parts is to do in those that are not the home.
//!
//! It is written in the home together with the home's own records, which is when the batch is committed: from then on it is
//! carried out, by whoever holds the store. Two phases with a vote of each part were rejected: one process writes, so what
//! holds when it looks holds until it writes.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use fairmesh_rib::{Expect, Op};

use super::super::layout::Layout;

/// Where the intent of a batch lies. The name is used once, so that it may be deleted twice.
pub(super) fn key(layout: &Layout, number: u64) -> Bytes {
    layout.meta(&format!("intent/{number:016x}"))
}

/// Operations with the parts that they are in.
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

/// Reads [`encode`]; `None` for what is not that.
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
    fn an_intent_reads_back_and_half_of_one_is_none() {
        let ops = [vec![Op::put("/a", "1"), Op::delete("/b")], vec![Op::put("/c", "")]];
        let text = encode(&[(&1, &ops[0]), (&7, &ops[1])]);
        let all: Vec<_> = [1, 1, 7].into_iter().zip(ops.concat()).collect();
        assert_eq!(decode(text.clone()), Some(all));
        assert_eq!(decode(text.slice(..text.len() - 1)), None);
    }
}
