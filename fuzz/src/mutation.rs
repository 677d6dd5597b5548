//! Bytes made from others, the same on every run.

use fairmesh_model::arith::Generator;

/// Bytes and numbers at which readers of lengths, lines and frames go wrong.
const WORDS: [&[u8]; 14] = [
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff",
    b" ",
    b"\t",
    b",",
    b"0",
    b"-1",
    b"\r\n\r\n",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"18446744073709551616",
];
/// The most changes at once.
const MOST: u64 = 4;

/// One input with a few changes, some of them pieces of another.
pub fn mutate(dice: &mut Generator, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.below(MOST) {
        change(dice, &mut bytes, other);
    }
    bytes
}

fn change(dice: &mut Generator, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = dice.below(bytes.len() as u64 + 1) as usize;
    let to = at + dice.below((bytes.len() - at).min(32) as u64 + 1) as usize;
    match dice.below(7) {
        0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        1 if at < bytes.len() => bytes[at] = dice.next() as u8,
        2 => drop(bytes.drain(at..to)),
        3 => {
            let again = bytes[at..to].to_vec();
            drop(bytes.splice(at..at, again));
        }
        4 => bytes.truncate(at),
        5 => {
            let from = dice.below(other.len() as u64 + 1) as usize;
            let until = from + dice.below((other.len() - from).min(256) as u64 + 1) as usize;
            drop(bytes.splice(at..to, other[from..until].iter().copied()));
        }
        _ => {
            let word = WORDS[dice.below(WORDS.len() as u64) as usize];
            drop(bytes.splice(at..to, word.iter().copied()));
        }
    }
}
