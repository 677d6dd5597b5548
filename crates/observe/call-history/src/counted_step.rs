use fairmesh_model::CallCounts;

/// Counts of a row in one step, and the part of the step that reports cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) counts: CallCounts,
    /// Covered part of the step: its begin and end, in milliseconds since the begin of the step.
    pub(crate) covered: (u64, u64),
}

impl Counted {
    pub(crate) fn covered_ms(&self) -> u64 {
        self.covered.1.saturating_sub(self.covered.0)
    }

    /// Adds the counts of another report in the same step.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts += &other.counts;
        self.covered = (self.covered.0.min(other.covered.0), self.covered.1.max(other.covered.1));
    }
}

/// A compact [`Counted`]: only the nonzero numbers, each with its position, as LEB128. A typical row has ten nonzero
/// numbers of 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell(Box<[u8]>);

impl Cell {
    pub(crate) fn of(counted: &Counted) -> Self {
        let mut bytes = Vec::with_capacity(48);
        write(&mut bytes, counted.covered.0);
        write(&mut bytes, counted.covered.1);
        for (position, number) in (0_u8..).zip(counted.counts.values()) {
            if *number > 0 {
                bytes.push(position);
                write(&mut bytes, *number);
            }
        }
        Self(bytes.into())
    }

    pub(crate) fn read(&self) -> Counted {
        let mut bytes = &self.0[..];
        let covered = (read(&mut bytes), read(&mut bytes));
        let mut values = *CallCounts::ZERO.values();
        while let Some((position, rest)) = bytes.split_first() {
            bytes = rest;
            let number = read(&mut bytes);
            if let Some(value) = values.get_mut(usize::from(*position)) {
                *value = number;
            }
        }
        Counted { counts: CallCounts::from_values(values), covered }
    }

    /// Returns the size on the heap, as rounded up by allocators, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.len().next_multiple_of(16) + 16
    }
}

fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_history_cell_round_trips_all_call_counts(
            numbers in prop::collection::vec(prop_oneof![Just(0), 0..300_u64, any::<u64>()], CallCounts::LEN),
            covered in (0_u64..10_000, 0_u64..60_000),
        ) {
            let counts = CallCounts::from_values(std::array::from_fn(|i| numbers[i]));
            let counted = Counted { counts, covered };
            prop_assert_eq!(Cell::of(&counted).read(), counted);
        }
    }
}
