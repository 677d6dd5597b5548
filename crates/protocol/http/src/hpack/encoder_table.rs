//! The encoder's dynamic table, and the policy that decides which fields enter it.

use std::collections::VecDeque;

use super::{DEFAULT_TABLE_SIZE, ENTRY_OVERHEAD, field_hash::FieldHasher, static_table};

/// Number of slots per set. An entry may be in any slot of the set that its hash selects.
const WAYS: usize = 8;
/// Number of sets. All sets together have four times as many slots as a table has entries.
const SETS: usize = 64;
/// Number of sets of recently seen fields. With more sets, more unique fields may come between two occurrences of a
/// field.
const SEEN_SETS: usize = 32;
/// An entry may take at most 1/4 of the table; a larger one would evict too much.
const MAX_ENTRY_FRACTION: usize = 4;
/// An entry that is added only for its name may take at most 1/16 of the table.
const MAX_NAME_FRACTION: usize = 16;

/// The content of the peer's dynamic table, indexed by hash.
///
/// Most fields repeat and are worth an entry. Unique fields, such as ids, dates and trace contexts, would evict the
/// repeating ones. A field is therefore added at its second occurrence. A name in no table is also added at its second
/// occurrence, even with a new value, since a literal name costs the peer more than its bytes.
#[derive(Debug)]
pub(super) struct EncoderTable {
    hasher: FieldHasher,
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    size: usize,
    limit: usize,
    /// Number of the next entry, which wraps around. A slot may hold the number of an evicted entry, so bytes are
    /// always compared.
    next: u16,
    slots: Box<[Slots; SETS]>,
    /// For each set, other bits of the hashes of recently seen fields, the latest first. Each set has several ways, so
    /// that two fields that always occur together and share a set do not evict each other.
    seen: Box<[[u32; WAYS]; SEEN_SETS]>,
}

/// A field to look up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// Hash state after the name, and the hash of the complete field.
    state: u64,
    hash: u64,
}

/// Slots with the numbers of entries, which may have been evicted since.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    /// Tags: some bits of the entries' hashes, adjacent so that all are compared at once.
    tags: [u16; WAYS],
    numbers: [u16; WAYS],
}

#[derive(Debug)]
struct Entry {
    /// Name and value, copied, because a header may share the memory of all headers it arrived with.
    text: Box<[u8]>,
    /// Length of the name in bytes.
    name: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.text.len() + ENTRY_OVERHEAD
    }

    /// Returns name and value.
    fn parts(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name)
    }
}

impl Default for EncoderTable {
    fn default() -> Self {
        Self {
            hasher: FieldHasher::new(),
            entries: VecDeque::new(),
            size: 0,
            limit: DEFAULT_TABLE_SIZE,
            // Empty slots hold 0, so no entry may have the number 0.
            next: 1,
            slots: Box::new([Slots::default(); SETS]),
            seen: Box::new([[0; WAYS]; SEEN_SETS]),
        }
    }
}

impl EncoderTable {
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes the maximum size. The peer must receive the size update before any further field.
    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// Whether a field whose name and value have `text` bytes may enter the table.
    pub(super) fn fits(&self, text: usize) -> bool {
        text + ENTRY_OVERHEAD <= self.limit / MAX_ENTRY_FRACTION
    }

    pub(super) fn lookup<'a>(&self, name: &'a [u8], value: &'a [u8]) -> Lookup<'a> {
        let state = self.hasher.begin(name);
        Lookup { name, value, state, hash: FieldHasher::hash(self.hasher.extend(state, value)) }
    }

    /// Returns the index of this field.
    pub(super) fn find(&self, lookup: &Lookup<'_>) -> Option<usize> {
        self.look_up(lookup.hash, |entry| entry.parts() == (lookup.name, lookup.value))
    }

    /// Returns the index of a field with this name.
    pub(super) fn find_name(&self, name: &[u8]) -> Option<usize> {
        self.look_up(FieldHasher::hash(self.hasher.begin(name)), |entry| entry.parts().0 == name)
    }

    #[inline]
    fn look_up(&self, hash: u64, is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
        let set = &self.slots[hash as usize % SETS];
        let mut same = set.with_tag(tag(hash));
        while same != 0 {
            let age = self.age(set.numbers[same.trailing_zeros() as usize % WAYS]);
            if self.entries.get(age.wrapping_sub(1)).is_some_and(&is_it) {
                return Some(static_table::COUNT + age);
            }
            same &= same - 1;
        }
        None
    }

    /// Returns the age of an entry: 1 for the newest.
    fn age(&self, number: u16) -> usize {
        usize::from(self.next.wrapping_sub(number))
    }

    /// Adds a field that [fits](Self::fits) and is not in the table. It is added if the field is expected to repeat,
    /// or if its name is in no table and is expected to repeat. Returns whether the peer must add the field too.
    pub(super) fn admit(&mut self, lookup: &Lookup<'_>, name_lacks: bool) -> bool {
        let size = lookup.name.len() + lookup.value.len() + ENTRY_OVERHEAD;
        let name_hash = FieldHasher::hash(lookup.state);
        let for_name = name_lacks && self.seen_before(name_hash) && size <= self.limit / MAX_NAME_FRACTION;
        if !self.seen_before(lookup.hash) && !for_name {
            return false;
        }
        self.evict(self.limit - size);
        self.size += size;
        let text = [lookup.name, lookup.value].concat().into();
        self.entries.push_front(Entry { text, name: lookup.name.len() });
        self.insert_slot(lookup.hash);
        // One entry per name is enough: fields of one name would occupy all slots of a set.
        if name_lacks {
            self.insert_slot(name_hash);
        }
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Records a hash. Returns whether it was seen recently.
    fn seen_before(&mut self, hash: u64) -> bool {
        let rest = (hash >> 32) as u32;
        let set = &mut self.seen[(hash >> 8) as usize % SEEN_SETS];
        let is_seen = set.contains(&rest);
        if !is_seen {
            set.rotate_right(1);
            set[0] = rest;
        }
        is_seen
    }

    /// Makes the next entry findable by this hash. Replaces the oldest slot of the set.
    fn insert_slot(&mut self, hash: u64) {
        let set = &mut self.slots[hash as usize % SETS];
        let slots = std::iter::zip(&mut set.tags, &mut set.numbers);
        if let Some(oldest) = slots.max_by_key(|(_, number)| self.next.wrapping_sub(**number)) {
            *oldest.0 = tag(hash);
            *oldest.1 = self.next;
        }
    }

    /// Evicts the oldest entries until at most `most` bytes are left.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

impl Slots {
    /// Returns one bit per slot: 1 for slots with this tag.
    fn with_tag(&self, tag: u16) -> u32 {
        let bit = |(slot, at): (usize, &u16)| u32::from(*at == tag) << slot;
        self.tags.iter().enumerate().map(bit).sum()
    }
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

#[cfg(test)]
impl EncoderTable {
    /// Returns the sizes of the entries.
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.entries.iter().map(Entry::size).collect()
    }
}
