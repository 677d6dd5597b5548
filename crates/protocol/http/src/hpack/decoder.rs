//! Decodes header blocks (RFC 7541 3).

use super::{
    DEFAULT_TABLE_SIZE, DecodeError, Field,
    dynamic_table::DynamicTable,
    header_field::{Entry, Name},
    primitives::Input,
    static_table,
};

/// Capacity for decoded strings that is kept between blocks, in bytes.
const KEPT_CAPACITY: usize = 4096;
/// Maximum number of dynamic table size updates at the beginning of a block: one to the minimum, one to the final size
/// (RFC 7541 4.2).
const MAX_SIZE_UPDATES: usize = 2;

/// Decodes all header blocks of a connection, in order.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    max_size: usize,
    /// Buffer for Huffman-coded strings.
    buffer: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(DEFAULT_TABLE_SIZE)
    }
}

impl Decoder {
    /// Creates a decoder whose dynamic table has at most `max_size` bytes, the value announced as
    /// `SETTINGS_HEADER_TABLE_SIZE`. Above 4096 bytes, the peer uses the space only after a size update. Below 4096,
    /// blocks that the peer sent before it received the setting may fail to decode.
    pub fn new(max_size: usize) -> Self {
        Self { table: DynamicTable::new(max_size.min(DEFAULT_TABLE_SIZE)), max_size, buffer: Vec::new() }
    }

    /// Decodes a complete header block, and passes each field to `each` in order.
    ///
    /// # Errors
    /// The block cannot be decoded. Some fields may have been passed to `each` already.
    pub fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field)) -> Result<(), DecodeError> {
        let mut input = Input(block);
        self.resize(&mut input)?;
        while let Some(first) = input.first() {
            each(self.field(first, &mut input)?);
        }
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_CAPACITY);
        Ok(())
    }

    /// Applies dynamic table size updates (RFC 7541 6.3).
    fn resize(&mut self, input: &mut Input<'_>) -> Result<(), DecodeError> {
        for _ in 0..MAX_SIZE_UPDATES {
            if !input.first().is_some_and(is_resize) {
                break;
            }
            let limit = input.integer(5)?;
            if limit > self.max_size {
                return Err(DecodeError("a table size update exceeds SETTINGS_HEADER_TABLE_SIZE"));
            }
            self.table.resize(limit);
        }
        Ok(())
    }

    fn field(&mut self, first: u8, input: &mut Input<'_>) -> Result<Field, DecodeError> {
        match first {
            0x80.. => self.entry(input.integer(7)?).map(|entry| entry.field.clone()),
            0x40.. => {
                let entry = self.literal(input, 6)?;
                let field = entry.field.clone();
                self.table.insert(entry);
                Ok(field)
            }
            0x20.. => Err(DecodeError("a table size update within a block, or a third one")),
            0x10.. => {
                let mut field = self.literal(input, 4)?.field;
                // Intermediaries must not add never-indexed fields to a table either (RFC 7541 6.2.3).
                if let Field::Header(_, value) = &mut field {
                    value.set_sensitive(true);
                }
                Ok(field)
            }
            _ => Ok(self.literal(input, 4)?.field),
        }
    }

    /// Decodes a literal field, whose name may be indexed (RFC 7541 6.2).
    fn literal(&mut self, input: &mut Input<'_>, bits: u32) -> Result<Entry, DecodeError> {
        let name = match input.integer(bits)? {
            0 => Name::read(input.string(&mut self.buffer)?),
            index => self.entry(index)?.name(),
        };
        Ok(Entry::read(name, input.string(&mut self.buffer)?))
    }

    /// Returns the entry with this index. The static table precedes the dynamic one (RFC 7541 2.3.3).
    fn entry(&self, index: usize) -> Result<&Entry, DecodeError> {
        let place = index.checked_sub(1).ok_or(DecodeError("index 0"))?;
        let entry = match place.checked_sub(static_table::COUNT) {
            None => static_table::get(place),
            Some(age) => self.table.get(age),
        };
        entry.ok_or(DecodeError("an index beyond the tables"))
    }
}

fn is_resize(first: u8) -> bool {
    first & 0xe0 == 0x20
}

#[cfg(test)]
impl Decoder {
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }
}
