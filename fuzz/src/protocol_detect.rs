//! The first bytes of a captured connection, which are peeked as they arrive: what they are taken for does not depend on the
//! pieces, and no longer piece is taken for anything else.

use fairmesh_proxy::fuzzing::classify;

/// Bytes that are peeked at most.
const MAX_PEEK: usize = 64 * 1024;
/// Pieces of one input.
const PIECES: usize = 64;

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let data = &data[..data.len().min(MAX_PEEK)];
    let whole = classify(data);
    for end in (0..data.len()).step_by(data.len() / PIECES + 1) {
        let piece = classify(&data[..end]);
        assert!(piece.is_none() || piece == whole, "of {end} bytes {piece:?}, of all {whole:?}");
    }
}
