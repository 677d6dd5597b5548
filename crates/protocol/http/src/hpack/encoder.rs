//! Encodes header blocks (RFC 7541 3).

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::{
    DEFAULT_TABLE_SIZE,
    encoder_table::EncoderTable,
    primitives::{integer, string},
    static_table,
};

/// Encodes all header blocks of a connection, in order.
#[derive(Debug, Default)]
pub struct Encoder {
    table: EncoderTable,
    size_update: Option<SizeUpdate>,
}

/// Changes of the table's maximum size since the last block.
#[derive(Clone, Copy, Debug)]
struct SizeUpdate {
    least: usize,
    last: usize,
}

/// A header block under construction. Pseudo-headers come first (RFC 9113 8.3).
#[derive(Debug)]
pub struct Block<'a> {
    encoder: &'a mut Encoder,
    out: &'a mut Vec<u8>,
}

/// The representation of a literal field (RFC 7541 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    /// With incremental indexing: the peer adds the field to its table.
    Incremental,
    /// Without indexing.
    WithoutIndexing,
    /// Never indexed, not even by intermediaries.
    NeverIndexed,
}

impl Encoder {
    /// Applies the peer's `SETTINGS_HEADER_TABLE_SIZE` from the next block on. At most 4096 bytes are used.
    pub fn limit(&mut self, size: u32) {
        let last = (size as usize).min(DEFAULT_TABLE_SIZE);
        let least = self.size_update.map_or(last, |size_update| size_update.least.min(last));
        self.size_update = Some(SizeUpdate { least, last });
    }

    /// Begins a block at the end of `out`.
    pub fn block<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Block<'a> {
        if let Some(SizeUpdate { least, last }) = self.size_update.take() {
            // Entries evicted at the smaller size are gone, even if the maximum size rises again (RFC 7541 4.2).
            self.announce(least.min(self.table.limit()), out);
            self.announce(last, out);
        }
        Block { encoder: self, out }
    }

    fn announce(&mut self, limit: usize, out: &mut Vec<u8>) {
        if limit != self.table.limit() {
            integer(out, 0x20, 5, limit);
            self.table.resize(limit);
        }
    }
}

impl Block<'_> {
    /// Adds `:status`.
    pub fn status(&mut self, status: StatusCode) {
        let whole = static_table::status(status);
        self.pseudo(whole, static_table::STATUS, ":status", status.as_str());
    }

    /// Adds `:method`.
    pub fn method(&mut self, method: &Method) {
        self.pseudo(static_table::method(method), static_table::METHOD, ":method", method.as_str());
    }

    /// Adds `:scheme`.
    pub fn scheme(&mut self, scheme: &str) {
        self.pseudo(static_table::scheme(scheme), static_table::SCHEME, ":scheme", scheme);
    }

    /// Adds `:authority`.
    pub fn authority(&mut self, authority: &str) {
        self.pseudo(None, static_table::AUTHORITY, ":authority", authority);
    }

    /// Adds `:path`.
    pub fn path(&mut self, path: &str) {
        self.pseudo(static_table::path(path), static_table::PATH, ":path", path);
    }

    /// Adds a header.
    pub fn header(&mut self, name: &HeaderName, value: &HeaderValue) {
        let (text, value_text) = (name.as_str().as_bytes(), value.as_bytes());
        match literal_only(name, value) {
            None => self.field(|| static_table::header(name), text, value_text),
            Some(how) => {
                let index = self.name(static_table::header(name), text);
                self.literal(how, index, text, value_text);
            }
        }
    }

    /// Adds all headers.
    pub fn headers(&mut self, headers: &HeaderMap) {
        for (name, value) in headers {
            self.header(name, value);
        }
    }

    fn pseudo(&mut self, whole: Option<usize>, name_index: usize, name: &str, value: &str) {
        match whole {
            Some(index) => self.index(index),
            None => self.field(|| name_index, name.as_bytes(), value.as_bytes()),
        }
    }

    /// Adds a field that may be in the dynamic table. `known` returns the index of the field's name in the static
    /// table, or 0.
    fn field(&mut self, known: impl FnOnce() -> usize, name: &[u8], value: &[u8]) {
        if !self.encoder.table.fits(name.len() + value.len()) {
            let index = self.name(known(), name);
            return self.literal(Literal::WithoutIndexing, index, name, value);
        }
        let lookup = self.encoder.table.lookup(name, value);
        if let Some(index) = self.encoder.table.find(&lookup) {
            return self.index(index);
        }
        let index = self.name(known(), name);
        let how = match self.encoder.table.admit(&lookup, index == 0) {
            true => Literal::Incremental,
            false => Literal::WithoutIndexing,
        };
        self.literal(how, index, name, value);
    }

    /// Returns the index of a name: `known` if it is not 0, otherwise its index in the dynamic table, or 0.
    fn name(&self, known: usize, name: &[u8]) -> usize {
        if known > 0 { known } else { self.encoder.table.find_name(name).unwrap_or(0) }
    }

    fn index(&mut self, index: usize) {
        integer(self.out, 0x80, 7, index);
    }

    fn literal(&mut self, how: Literal, name_index: usize, name: &[u8], value: &[u8]) {
        match how {
            Literal::Incremental => integer(self.out, 0x40, 6, name_index),
            Literal::WithoutIndexing => integer(self.out, 0, 4, name_index),
            Literal::NeverIndexed => integer(self.out, 0x10, 4, name_index),
        }
        if name_index == 0 {
            string(self.out, name);
        }
        string(self.out, value);
    }
}

/// Returns the literal representation of a header that must stay out of the table; `None` for other headers.
fn literal_only(name: &HeaderName, value: &HeaderValue) -> Option<Literal> {
    if value.is_sensitive() {
        return Some(Literal::NeverIndexed);
    }
    match *name {
        // An attacker who can add fields beside these, and observes the length of blocks, could guess values in the
        // table (RFC 7541 7.1). A connection carries requests of many clients.
        header::AUTHORIZATION | header::PROXY_AUTHORIZATION | header::COOKIE | header::SET_COOKIE => {
            Some(Literal::NeverIndexed)
        }
        // Lengths rarely repeat, and are too short to be worth an entry.
        header::CONTENT_LENGTH => Some(Literal::WithoutIndexing),
        _ => None,
    }
}

#[cfg(test)]
impl Encoder {
    pub(super) fn table(&self) -> &EncoderTable {
        &self.table
    }
}
