//! Integers and strings (RFC 7541 5).

use super::{DecodeError, huffman};

/// The flag of Huffman-coded strings (RFC 7541 5.2).
const HUFFMAN: u8 = 0x80;
/// Maximum number of continuation bytes in an integer: enough for any `u32`. RFC 7541 5.1 leaves the limit to
/// implementations.
const MAX_CONTINUATION_BYTES: u32 = 5;

/// The part of a block that is not yet decoded.
#[derive(Debug)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    /// Returns the next byte, which determines the field representation, without consuming it.
    pub(super) fn first(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let (byte, rest) = self.0.split_first().ok_or(DecodeError("the block ends within a field"))?;
        self.0 = rest;
        Ok(*byte)
    }

    /// Decodes an integer with a prefix of `bits`, less than 8.
    pub(super) fn integer(&mut self, bits: u32) -> Result<usize, DecodeError> {
        let mask = (1 << bits) - 1;
        let first = self.byte()? & mask;
        if first < mask {
            return Ok(usize::from(first));
        }
        let mut sum = u64::from(mask);
        for place in 0..MAX_CONTINUATION_BYTES {
            let byte = self.byte()?;
            sum += u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                let fits = u32::try_from(sum).map_err(|_| DecodeError("an integer exceeds 32 bits"))?;
                return Ok(fits as usize);
            }
        }
        Err(DecodeError("an integer has too many bytes"))
    }

    /// Decodes a string. The result lies in the block itself, or is Huffman-decoded into `buffer`.
    pub(super) fn string<'r>(&mut self, buffer: &'r mut Vec<u8>) -> Result<&'r [u8], DecodeError>
    where
        'a: 'r,
    {
        let is_huffman = self.first().is_some_and(|first| first & HUFFMAN != 0);
        let length = self.integer(7)?;
        let (text, rest) =
            self.0.split_at_checked(length).ok_or(DecodeError("the block ends within a string"))?;
        self.0 = rest;
        if !is_huffman {
            return Ok(text);
        }
        buffer.clear();
        huffman::decode(text, buffer)?;
        Ok(buffer)
    }
}

/// Appends an integer with a prefix of `bits`, less than 8. `first` holds the remaining bits of the first byte.
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

/// Appends a string without Huffman coding. Huffman coding would save a fifth of the bytes, but within a data centre it
/// costs both sides more CPU than the saved bytes are worth. Repeated fields are sent as an index of one or two bytes
/// anyway.
pub(super) fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}
