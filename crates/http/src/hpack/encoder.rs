//! Puts header blocks together (RFC 7541 3).

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::{
    DEFAULT_SIZE, entries,
    primitives::{integer, string},
    repeats::Repeats,
};

/// Encodes what the other side's decoder takes apart, all blocks of a connection in order.
#[derive(Debug, Default)]
pub struct Encoder {
    repeats: Repeats,
    resize: Option<Resize>,
}

/// How the limit of the table changed since the last block.
#[derive(Clone, Copy, Debug)]
struct Resize {
    least: usize,
    last: usize,
}

/// A header block that is being written. Pseudo-headers come first (RFC 9113 8.3).
#[derive(Debug)]
pub struct Block<'a> {
    encoder: &'a mut Encoder,
    out: &'a mut Vec<u8>,
}

/// How a field is written out (RFC 7541 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    /// The other side puts it into its table.
    Indexed,
    /// It does not.
    Passing,
    /// Nor does anyone further on.
    Never,
}

impl Encoder {
    /// What the other side's `SETTINGS_HEADER_TABLE_SIZE` says, which the next block answers. More than 4096 is not used.
    pub fn limit(&mut self, size: u32) {
        let last = (size as usize).min(DEFAULT_SIZE);
        let least = self.resize.map_or(last, |resize| resize.least.min(last));
        self.resize = Some(Resize { least, last });
    }

    /// Begins a block at the end of `out`.
    pub fn block<'a>(&'a mut self, out: &'a mut Vec<u8>) -> Block<'a> {
        if let Some(Resize { least, last }) = self.resize.take() {
            // What the other side evicted in between is gone, even if there is room again (RFC 7541 4.2).
            self.announce(least.min(self.repeats.limit()), out);
            self.announce(last, out);
        }
        Block { encoder: self, out }
    }

    fn announce(&mut self, limit: usize, out: &mut Vec<u8>) {
        if limit != self.repeats.limit() {
            integer(out, 0x20, 5, limit);
            self.repeats.resize(limit);
        }
    }
}

impl Block<'_> {
    /// Adds `:status`.
    pub fn status(&mut self, status: StatusCode) {
        let whole = entries::status(status);
        self.pseudo(whole, entries::STATUS, ":status", status.as_str());
    }

    /// Adds `:method`.
    pub fn method(&mut self, method: &Method) {
        self.pseudo(entries::method(method), entries::METHOD, ":method", method.as_str());
    }

    /// Adds `:scheme`.
    pub fn scheme(&mut self, scheme: &str) {
        self.pseudo(entries::scheme(scheme), entries::SCHEME, ":scheme", scheme);
    }

    /// Adds `:authority`.
    pub fn authority(&mut self, authority: &str) {
        self.pseudo(None, entries::AUTHORITY, ":authority", authority);
    }

    /// Adds `:path`.
    pub fn path(&mut self, path: &str) {
        self.pseudo(entries::path(path), entries::PATH, ":path", path);
    }

    /// Adds a field.
    pub fn header(&mut self, name: &HeaderName, value: &HeaderValue) {
        let (text, value_text) = (name.as_str().as_bytes(), value.as_bytes());
        match without_table(name, value) {
            None => self.field(|| entries::header(name), text, value_text),
            Some(how) => {
                let index = self.name(entries::header(name), text);
                self.literal(how, index, text, value_text);
            }
        }
    }

    /// Adds all of these.
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

    /// Adds a field that may be in the dynamic table. `known` is the index of its name in the static one, or 0.
    fn field(&mut self, known: impl FnOnce() -> usize, name: &[u8], value: &[u8]) {
        if !self.encoder.repeats.fits(name.len() + value.len()) {
            let index = self.name(known(), name);
            return self.literal(Literal::Passing, index, name, value);
        }
        let sought = self.encoder.repeats.sought(name, value);
        if let Some(index) = self.encoder.repeats.find(&sought) {
            return self.index(index);
        }
        let index = self.name(known(), name);
        let how = match self.encoder.repeats.admit(&sought, index == 0) {
            true => Literal::Indexed,
            false => Literal::Passing,
        };
        self.literal(how, index, name, value);
    }

    /// The index of a name, `known` or in the dynamic table, or 0.
    fn name(&self, known: usize, name: &[u8]) -> usize {
        if known > 0 { known } else { self.encoder.repeats.find_name(name).unwrap_or(0) }
    }

    fn index(&mut self, index: usize) {
        integer(self.out, 0x80, 7, index);
    }

    fn literal(&mut self, how: Literal, name_index: usize, name: &[u8], value: &[u8]) {
        match how {
            Literal::Indexed => integer(self.out, 0x40, 6, name_index),
            Literal::Passing => integer(self.out, 0, 4, name_index),
            Literal::Never => integer(self.out, 0x10, 4, name_index),
        }
        if name_index == 0 {
            string(self.out, name);
        }
        string(self.out, value);
    }
}

/// How a header is written whose value is not to be in the table, if so.
fn without_table(name: &HeaderName, value: &HeaderValue) -> Option<Literal> {
    if value.is_sensitive() {
        return Some(Literal::Never);
    }
    match *name {
        // Whoever can put fields beside these, and sees how long the block becomes, finds out what is in a table by guessing
        // (RFC 7541 7.1). A connection carries requests of many clients.
        header::AUTHORIZATION | header::PROXY_AUTHORIZATION | header::COOKIE | header::SET_COOKIE => {
            Some(Literal::Never)
        }
        // Lengths rarely repeat, and take fewer bytes than an entry costs.
        header::CONTENT_LENGTH => Some(Literal::Passing),
        _ => None,
    }
}

#[cfg(test)]
impl Encoder {
    pub(super) fn repeats(&self) -> &Repeats {
        &self.repeats
    }
}
