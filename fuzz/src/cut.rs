//! The same bytes in different pieces: byte by byte, and in pieces of random sizes.

use fairmesh_model::arith::Generator;
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes that are tried one by one.
const FEW: usize = 1024;

/// Ways in which bytes may come, which hang on nothing but the bytes.
pub(crate) fn ways(sent: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut ways = vec![pieces(sent)];
    if sent.len() <= FEW {
        ways.push(sent.chunks(1).collect());
    }
    ways
}

/// Pieces of very different sizes.
pub(crate) fn pieces(mut sent: &[u8]) -> Vec<&[u8]> {
    let mut dice = Generator::new(xxh3_64(sent));
    let mut pieces = Vec::new();
    while !sent.is_empty() {
        let most = [1, 4, 64, 4096][dice.next() as usize % 4];
        let (piece, rest) = sent.split_at((1 + dice.next() as usize % most).min(sent.len()));
        pieces.push(piece);
        sent = rest;
    }
    pieces
}
