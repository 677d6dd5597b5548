//! Header blocks of messages (RFC 7541), without Huffman coding.

/// First index of the dynamic table.
const DYNAMIC: usize = 62;
/// `:status: 200`.
pub(super) const OK: u8 = 0x88;

/// A header block that is the same for each message.
#[derive(Debug)]
pub(super) struct Head {
    /// Encoding in the first message of a connection, which fills the dynamic table.
    first: Vec<u8>,
    /// Encoding in later messages.
    later: Vec<u8>,
}

impl Head {
    /// From encoded fields of the static table, followed by other fields; `below` is the number of fields that later
    /// header blocks insert into the dynamic table.
    pub(super) fn new(known: &[u8], fields: &[(&str, &str)], below: usize) -> Self {
        let (mut first, mut later) = (known.to_vec(), known.to_vec());
        for (at, (name, value)) in fields.iter().enumerate() {
            first.push(0x40);
            for text in [name, value] {
                // All lengths are below 127.
                first.push(text.len() as u8);
                first.extend_from_slice(text.as_bytes());
            }
            later.push(0x80 | (DYNAMIC + below + fields.len() - 1 - at) as u8);
        }
        Self { first, later }
    }

    /// Encoding for the first message on a connection, or for a later one.
    pub(super) fn bytes(&self, is_first: bool) -> &[u8] {
        if is_first { &self.first } else { &self.later }
    }
}

/// Whether a header block starts with status 200, after an optional table size update.
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
