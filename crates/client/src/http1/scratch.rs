//! Memory that all connections of a thread use in turn, each for a moment: it stays in the processor's nearest cache, where
//! memory of a connection's own would be fetched anew for each message, and an idle connection holds none of it.

use std::cell::RefCell;

/// As much as is read at once.
const ROOM: usize = 64 * 1024;

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
pub(crate) fn room<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|room| read(room))
}
