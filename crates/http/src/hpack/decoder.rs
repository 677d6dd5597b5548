//! Takes header blocks apart (RFC 7541 3).

use super::{
    Broken, DEFAULT_SIZE, Field, entries,
    field::{Entry, Name},
    primitives::Input,
    table::Table,
};

/// Memory for strings that is kept between blocks.
const KEPT: usize = 4096;
/// Changes of the table's size at the beginning of a block: down to the least, and to the last (RFC 7541 4.2).
const MOST_RESIZES: usize = 2;

/// Decodes what the other side's encoder makes, all blocks of a connection in order.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    most: usize,
    /// For strings that are Huffman-coded.
    room: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(DEFAULT_SIZE)
    }
}

impl Decoder {
    /// With a dynamic table of at most so many bytes, which is what our `SETTINGS_HEADER_TABLE_SIZE` says. Of more than 4096,
    /// the other side may only make use once it has announced so. With less it may have sent blocks before it heard so, which
    /// this cannot decode.
    pub fn new(most: usize) -> Self {
        Self { table: Table::new(most.min(DEFAULT_SIZE)), most, room: Vec::new() }
    }

    /// Decodes a whole header block, handing over each field in order.
    ///
    /// # Errors
    /// Where the connection is lost. The fields so far were handed over.
    pub fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field)) -> Result<(), Broken> {
        let mut input = Input(block);
        self.resize(&mut input)?;
        while let Some(first) = input.first() {
            each(self.field(first, &mut input)?);
        }
        self.room.clear();
        self.room.shrink_to(KEPT);
        Ok(())
    }

    /// Applies changes of the table's size (RFC 7541 6.3).
    fn resize(&mut self, input: &mut Input<'_>) -> Result<(), Broken> {
        for _ in 0..MOST_RESIZES {
            if !input.first().is_some_and(is_resize) {
                break;
            }
            let limit = input.integer(5)?;
            if limit > self.most {
                return Err(Broken("the table would be larger than was agreed on"));
            }
            self.table.resize(limit);
        }
        Ok(())
    }

    fn field(&mut self, first: u8, input: &mut Input<'_>) -> Result<Field, Broken> {
        match first {
            0x80.. => self.entry(input.integer(7)?).map(|entry| entry.field.clone()),
            0x40.. => {
                let entry = self.literal(input, 6)?;
                let field = entry.field.clone();
                self.table.insert(entry);
                Ok(field)
            }
            0x20.. => Err(Broken("the size of the table is changed too often, or too late")),
            0x10.. => {
                let mut field = self.literal(input, 4)?.field;
                // Whoever sends this on must not put it into a table either (RFC 7541 6.2.3).
                if let Field::Header(_, value) = &mut field {
                    value.set_sensitive(true);
                }
                Ok(field)
            }
            _ => Ok(self.literal(input, 4)?.field),
        }
    }

    /// A field whose value is written out, and whose name may be (RFC 7541 6.2).
    fn literal(&mut self, input: &mut Input<'_>, bits: u32) -> Result<Entry, Broken> {
        let name = match input.integer(bits)? {
            0 => Name::read(input.string(&mut self.room)?),
            index => self.entry(index)?.name(),
        };
        Ok(Entry::read(name, input.string(&mut self.room)?))
    }

    /// The static table comes first, then the dynamic one (RFC 7541 2.3.3).
    fn entry(&self, index: usize) -> Result<&Entry, Broken> {
        let place = index.checked_sub(1).ok_or(Broken("an index is 0"))?;
        let entry = match place.checked_sub(entries::COUNT) {
            None => entries::get(place),
            Some(age) => self.table.get(age),
        };
        entry.ok_or(Broken("an index is beyond the table"))
    }
}

fn is_resize(first: u8) -> bool {
    first & 0xe0 == 0x20
}

#[cfg(test)]
impl Decoder {
    pub(super) fn table(&self) -> &Table {
        &self.table
    }
}
