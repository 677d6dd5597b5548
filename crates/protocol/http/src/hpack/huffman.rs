//! The Huffman code of strings (RFC 7541 5.2).
//!
//! The code is canonical: shorter codes precede longer ones, and codes of equal length are consecutive. The lengths
//! alone therefore define the code. Comparing bits with the upper bound of each length finds the length of a code.

use super::DecodeError;

/// The end-of-string symbol, which pads a string and never occurs in one (RFC 7541 5.2).
const EOS: u16 = 256;
const SYMBOLS: usize = 257;
/// Maximum length of codes that are found by one table lookup, in bits. All frequent codes are shorter.
const SHORT: u32 = 8;
const LONGEST: u32 = 30;

/// Length of each symbol's code in bits (RFC 7541, appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// Lookup tables for decoding.
struct Code {
    /// Indexed by the next [`SHORT`] bits: a symbol and the length of its code; 0 if the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// Symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// Indexed by length: the upper bound of all codes up to this length, left-aligned in 32 bits.
    ends: [u64; LONGEST as usize + 1],
    /// Indexed by length: the number of codes up to this length.
    counts: [u32; LONGEST as usize + 1],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut code = Code {
        short: [(0, 0); 1 << SHORT],
        symbols: [0; SYMBOLS],
        ends: [0; LONGEST as usize + 1],
        counts: [0; LONGEST as usize + 1],
    };
    let (mut end, mut count, mut length) = (0, 0, 1);
    while length <= LONGEST as usize {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                code.symbols[count as usize] = symbol as u16;
                count += 1;
                fill_short(&mut code.short, end, symbol, length as u32);
                end += 1 << (32 - length);
            }
            symbol += 1;
        }
        code.ends[length] = end;
        code.counts[length] = count;
        length += 1;
    }
    code
}

/// Enters a short code, left-aligned in 32 bits, for every combination of the bits after it.
const fn fill_short(short: &mut [(u8, u8); 1 << SHORT], code: u64, symbol: usize, length: u32) {
    if length > SHORT {
        return;
    }
    let first = (code >> (32 - SHORT)) as usize;
    let mut at = first;
    while at < first + (1 << (SHORT - length)) {
        short[at] = (symbol as u8, length as u8);
        at += 1;
    }
}

/// Appends the decoded string to `out`. The decoded string has at most 8/5 of the length of `coded`.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    out.reserve(coded.len() / 5 * 8 + 8);
    let mut bits = Bits { rest: coded, next: 0, count: 0 };
    loop {
        bits.fill();
        let window = bits.window();
        let (symbol, length) = match CODE.short[(window >> (32 - SHORT)) as usize] {
            (_, 0) => long(window),
            (symbol, length) => (u16::from(symbol), u32::from(length)),
        };
        if length > bits.count {
            return bits.end();
        }
        if symbol == EOS {
            return Err(DecodeError("a string contains EOS"));
        }
        out.push(symbol as u8);
        bits.skip(length);
    }
}

/// Returns the symbol whose code, longer than [`SHORT`], begins these bits, and the length of the code.
#[cold]
fn long(window: u32) -> (u16, u32) {
    let mut length = SHORT + 1;
    while length < LONGEST && u64::from(window) >= CODE.ends[length as usize] {
        length += 1;
    }
    // Counted from the end, codes of one length are consecutive: the upper bound of a length belongs to its last code.
    let behind = (CODE.ends[length as usize] - 1 - u64::from(window)) >> (32 - length);
    let place = CODE.counts[length as usize] as usize - 1 - behind as usize;
    (CODE.symbols[place], length)
}

/// Reads a string bit by bit.
struct Bits<'a> {
    rest: &'a [u8],
    /// The next bits, left-aligned and followed by zeros.
    next: u64,
    /// Number of valid bits in `next`, less than 64.
    count: u32,
}

impl Bits<'_> {
    /// Fills `next` with enough bits for the longest code, unless the string ends before.
    fn fill(&mut self) {
        if self.count >= LONGEST {
            return;
        }
        if let Some((four, rest)) = self.rest.split_first_chunk() {
            self.next |= u64::from(u32::from_be_bytes(*four)) << (32 - self.count);
            self.count += 32;
            self.rest = rest;
            return;
        }
        for byte in std::mem::take(&mut self.rest) {
            self.next |= u64::from(*byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Returns the next 32 bits. Ones follow the last bit, as in padding, which is a prefix of [`EOS`].
    fn window(&self) -> u32 {
        ((self.next | u64::MAX >> self.count) >> 32) as u32
    }

    fn skip(&mut self, length: u32) {
        self.next <<= length;
        self.count -= length;
    }

    /// Checks the padding: less than a byte, and only ones (RFC 7541 5.2).
    fn end(&self) -> Result<(), DecodeError> {
        if self.count >= 8 {
            return Err(DecodeError("the padding of a string exceeds 7 bits"));
        }
        if self.window() != u32::MAX {
            return Err(DecodeError("the padding of a string is not all ones"));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let by_symbol = |symbol: u16| {
        let length = usize::from(LENGTHS[usize::from(symbol)]);
        let place = CODE.symbols.iter().position(|at| *at == symbol).unwrap();
        let behind = CODE.counts[length] as usize - place;
        let first = CODE.ends[length] - ((behind as u64) << (32 - length));
        (0..length).map(move |bit| first >> (31 - bit) & 1)
    };
    let mut bits: Vec<u64> = text.iter().flat_map(|byte| by_symbol(u16::from(*byte))).collect();
    bits.resize(bits.len().next_multiple_of(8), 1);
    bits.chunks(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | *bit as u8)).collect()
}
