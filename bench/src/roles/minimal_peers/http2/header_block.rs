//! Header blocks of messages (RFC 7541), without Huffman coding.

/// The first index of the table that a connection fills.
const DYNAMIC: usize = 62;
/// `:status: 200`.
pub(super) const OK: u8 = 0x88;

/// A header block that is the same each time.
#[derive(Debug)]
pub(super) struct Head {
    /// As it is first written, which fills the table.
    first: Vec<u8>,
    /// As it is written from then on.
    later: Vec<u8>,
}

impl Head {
    /// From fields of the static table, encoded, and others that follow them; `below` is the number of fields that
    /// other header blocks insert into the dynamic table after these.
    pub(super) fn new(known: &[u8], fields: &[(&str, &str)], below: usize) -> Self {
        let (mut first, mut later) = (known.to_vec(), known.to_vec());
        for (at, (name, value)) in fields.iter().enumerate() {
            first.push(0x40);
            for text in [name, value] {
                // Shorter than 127 bytes, all of them.
                first.push(text.len() as u8);
                first.extend_from_slice(text.as_bytes());
            }
            later.push(0x80 | (DYNAMIC + below + fields.len() - 1 - at) as u8);
        }
        Self { first, later }
    }

    /// As it is written the first time on a connection, or another.
    pub(super) fn bytes(&self, is_first: bool) -> &[u8] {
        if is_first { &self.first } else { &self.later }
    }
}

/// Whether a header block begins with a status of 200, after an optional table size update.
pub(super) fn is_ok(mut head: &[u8]) -> bool {
    while let [size, rest @ ..] = head
        && size & 0xe0 == 0x20
    {
        let is_long = size & 0x1f == 0x1f;
        let more = rest.iter().take_while(|byte| is_long && **byte & 0x80 != 0).count();
        head = rest.get(more + usize::from(is_long)..).unwrap_or_default();
    }
    head.first() == Some(&OK)
}
