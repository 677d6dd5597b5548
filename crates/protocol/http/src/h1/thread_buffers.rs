//! Buffers that all connections of a thread use in turn, briefly each. The shared buffers stay in the L1 cache, whereas
//! buffers per connection would be fetched anew for each message; and idle connections hold no buffer.

use std::cell::RefCell;

/// Maximum size of one read, in bytes. Larger messages are read into another buffer.
pub const READ_SIZE: usize = 16 * 1024;

thread_local! {
    static WRITE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into());
}

/// Calls `write` with an empty buffer. `write` must not call this function again.
pub fn with_write_buffer<T>(write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    WRITE.with_borrow_mut(|text| {
        text.clear();
        write(text)
    })
}

/// Calls `read` with a buffer of arbitrary content. `read` must not call this function again.
pub fn with_read_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| read(buffer))
}

/// Maximum length of a body that is copied behind the headers, in bytes: writing one buffer is cheaper than writing
/// several.
const MAX_COPIED: usize = 16 * 1024;

/// Copies a short body behind the headers. Returns the part of the body that is still to be sent after them.
pub fn append_short<'a>(text: &mut Vec<u8>, rest: &'a [u8]) -> &'a [u8] {
    if rest.len() > MAX_COPIED {
        return rest;
    }
    text.extend_from_slice(rest);
    &[]
}

/// Keeps the bytes of both parts after the first `written` ones.
pub fn keep_unsent(kept: &mut Vec<u8>, [text, rest]: [&[u8]; 2], written: usize) {
    kept.extend_from_slice(text.get(written..).unwrap_or_default());
    kept.extend_from_slice(rest.get(written.saturating_sub(text.len())..).unwrap_or_default());
}
