//! Memory that all connections of a thread use in turn, each for a moment: it stays in the processor's nearest cache, where
//! memory of a connection's own would be fetched anew for each message, and an idle connection holds none of it.

use std::cell::RefCell;

/// As much as is read here at once; what is likely to be larger is read elsewhere.
pub const ROOM: usize = 16 * 1024;

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM].into());
}

/// Has `write` write something, which begins empty, and do with it what is to be done. It must not ask for this memory itself.
pub fn text<T>(write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    TEXT.with_borrow_mut(|text| {
        text.clear();
        write(text)
    })
}

/// Has `read` read into memory, which holds anything, and do with it what is to be done. It must not ask for this memory
/// itself.
pub fn room<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|room| read(room))
}

/// Up to this length what follows a text is copied behind it: the system takes one part sooner than several.
const COPIED: usize = 16 * 1024;

/// Copies what is to follow a text behind it, where it is short, and returns what is still to follow.
pub fn follow<'a>(text: &mut Vec<u8>, rest: &'a [u8]) -> &'a [u8] {
    if rest.len() > COPIED {
        return rest;
    }
    text.extend_from_slice(rest);
    &[]
}

/// Keeps what of these parts was not among the bytes that were written.
pub fn unsent(kept: &mut Vec<u8>, [text, rest]: [&[u8]; 2], written: usize) {
    kept.extend_from_slice(text.get(written..).unwrap_or_default());
    kept.extend_from_slice(rest.get(written.saturating_sub(text.len())..).unwrap_or_default());
}
