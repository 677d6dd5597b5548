//! The Huffman code of strings (RFC 7541 5.2).
//!
//! The code is canonical: shorter codes come before longer ones, and symbols of the same length one after the other. So the
//! lengths tell it all, and a code is found by comparing it with the first one that is longer.

use super::Broken;

/// The symbol that ends a string and never occurs in one (RFC 7541 5.2).
const EOS: u16 = 256;
const SYMBOLS: usize = 257;
/// Codes up to this length, all that are frequent, are found at once.
const SHORT: u32 = 8;
const LONGEST: u32 = 30;

/// Bits of the code of each symbol (RFC 7541, appendix B).
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

/// The code, in the order in which it is looked up.
struct Code {
    /// By the next [`SHORT`] bits: a symbol and the bits of its code; of no bits where the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// Symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// By the length of codes: all of these and shorter ones are less than this, as the first of 32 bits.
    ends: [u64; LONGEST as usize + 1],
    /// By the length of codes: how many there are of these and shorter ones.
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

/// Notes a short code, the first of 32 bits, wherever the next bits begin with it.
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

/// Adds the string that is coded to `out`: at most 8/5 of its length.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
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
            return Err(Broken("a string holds the symbol that ends it"));
        }
        out.push(symbol as u8);
        bits.skip(length);
    }
}

/// The symbol whose code, longer than [`SHORT`], these bits begin with, and its length.
#[cold]
fn long(window: u32) -> (u16, u32) {
    let mut length = SHORT + 1;
    while length < LONGEST && u64::from(window) >= CODE.ends[length as usize] {
        length += 1;
    }
    // Counted from behind, these codes follow on each other: the ends of a length are those of its last code.
    let behind = (CODE.ends[length as usize] - 1 - u64::from(window)) >> (32 - length);
    let place = CODE.counts[length as usize] as usize - 1 - behind as usize;
    (CODE.symbols[place], length)
}

/// Bits that are to be decoded.
struct Bits<'a> {
    rest: &'a [u8],
    /// The next bits, the first one uppermost, and zeros.
    next: u64,
    /// How many of them there are, less than 64.
    count: u32,
}

impl Bits<'_> {
    /// Makes sure that the longest code fits what is next, unless the string ends before.
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

    /// The next 32 bits. What follows on the last is ones, as padding is: the beginning of [`EOS`].
    fn window(&self) -> u32 {
        ((self.next | u64::MAX >> self.count) >> 32) as u32
    }

    fn skip(&mut self, length: u32) {
        self.next <<= length;
        self.count -= length;
    }

    /// What is left is no symbol, and has to be padding: ones, and less than a byte (RFC 7541 5.2).
    fn end(&self) -> Result<(), Broken> {
        if self.count >= 8 {
            return Err(Broken("a string is padded by more than 7 bits"));
        }
        if self.window() != u32::MAX {
            return Err(Broken("a string is padded by other bits than ones"));
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
