//! Integers and strings (RFC 7541 5).

use super::{Broken, huffman};

/// The bit of a string that tells that it is Huffman-coded (RFC 7541 5.2).
const HUFFMAN: u8 = 0x80;
/// Bytes of an integer after the first one: these hold any `u32`. More would only fill it up with zeros (RFC 7541 5.1 leaves
/// the limit to us).
const MOST_CONTINUED: u32 = 5;

/// What is left of a block.
#[derive(Debug)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    /// The byte that comes next, and tells what does.
    pub(super) fn first(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, Broken> {
        let (byte, rest) = self.0.split_first().ok_or(Broken("it ends within a field"))?;
        self.0 = rest;
        Ok(*byte)
    }

    /// An integer that begins in the last `bits` of the next byte, less than 8.
    pub(super) fn integer(&mut self, bits: u32) -> Result<usize, Broken> {
        let mask = (1 << bits) - 1;
        let first = self.byte()? & mask;
        if first < mask {
            return Ok(usize::from(first));
        }
        let mut sum = u64::from(mask);
        for place in 0..MOST_CONTINUED {
            let byte = self.byte()?;
            sum += u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                let fits = u32::try_from(sum).map_err(|_| Broken("an integer is too large"))?;
                return Ok(fits as usize);
            }
        }
        Err(Broken("an integer is too long"))
    }

    /// A string, which lies in the block itself or is decoded into `room`.
    pub(super) fn string<'r>(&mut self, room: &'r mut Vec<u8>) -> Result<&'r [u8], Broken>
    where
        'a: 'r,
    {
        let is_huffman = self.first().is_some_and(|first| first & HUFFMAN != 0);
        let length = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Broken("it ends within a string"))?;
        self.0 = rest;
        if !is_huffman {
            return Ok(text);
        }
        room.clear();
        huffman::decode(text, room)?;
        Ok(room)
    }
}

/// Adds an integer that begins in the last `bits` of a byte, less than 8, whose other bits are `first`.
#[inline]
pub(super) fn integer(out: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let mask = (1 << bits) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Adds a string as it is. Huffman coding would save a fifth of its bytes and cost more CPU, on both sides, than those bytes do
/// within a data centre; and what repeats is an index of a byte or two, however it was written the first time.
pub(super) fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}
