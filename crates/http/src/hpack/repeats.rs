//! The dynamic table of what goes out, and what is to be put into it.

use std::collections::VecDeque;

use super::{DEFAULT_SIZE, OVERHEAD, entries, hash::Seed};

/// Places in which a hash can be found.
const WAYS: usize = 8;
/// Sets of these: four times as many places as a table has entries.
const SETS: usize = 64;
/// Sets of fields that were seen once, of which some repeat. The more there are, the more unique ones may come between.
const SEEN_SETS: usize = 32;
/// An entry may take this part of the table, or it would push out too much.
const PART: usize = 4;
/// One that is there only for its name may take this part.
const PART_FOR_NAME: usize = 16;

/// What the other side's dynamic table holds, found by hash.
///
/// Fields that repeat are worth their place, and most do. Those that do not, such as ids, dates and the context of a trace,
/// would push them out one by one. So a field gets in when it comes for the second time; or when its name does, since a name that
/// is written out costs the other side more than its bytes.
#[derive(Debug)]
pub(super) struct Repeats {
    seed: Seed,
    /// The newest first.
    entries: VecDeque<Entry>,
    size: usize,
    limit: usize,
    /// The number of the next entry. It wraps around, and may meet what is left of an old one: bytes are compared in any case.
    next: u16,
    places: Box<[Places; SETS]>,
    /// By hash: other bits of what was seen last, the latest first. Two that always come together may meet here, and must not
    /// make each other be forgotten each time.
    seen: Box<[[u32; WAYS]; SEEN_SETS]>,
}

/// A field to look up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// What the hash of its name, and its own, begin with.
    begun: u64,
    hash: u64,
}

/// Where entries are, which may have been evicted since.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    /// Bits of their hashes. These lie together so that all are compared at once.
    tags: [u16; WAYS],
    numbers: [u16; WAYS],
}

#[derive(Debug)]
struct Entry {
    /// Name and value, copied: a header may share the memory of the whole head that it came in.
    text: Box<[u8]>,
    /// The length of its name.
    name: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.text.len() + OVERHEAD
    }

    /// Name and value.
    fn parts(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name)
    }
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            seed: Seed::new(),
            entries: VecDeque::new(),
            size: 0,
            limit: DEFAULT_SIZE,
            // Places that are empty say 0, which is to be none.
            next: 1,
            places: Box::new([Places::default(); SETS]),
            seen: Box::new([[0; WAYS]; SEEN_SETS]),
        }
    }
}

impl Repeats {
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes how large the table may be. The other side must hear of it before any further field.
    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// Whether a field with that much text could be in the table.
    pub(super) fn fits(&self, text: usize) -> bool {
        text + OVERHEAD <= self.limit / PART
    }

    pub(super) fn sought<'a>(&self, name: &'a [u8], value: &'a [u8]) -> Sought<'a> {
        let begun = self.seed.begin(name);
        Sought { name, value, begun, hash: Seed::hash(self.seed.extend(begun, value)) }
    }

    /// The index of this field.
    pub(super) fn find(&self, sought: &Sought<'_>) -> Option<usize> {
        self.look_up(sought.hash, |entry| entry.parts() == (sought.name, sought.value))
    }

    /// The index of some field of this name.
    pub(super) fn find_name(&self, name: &[u8]) -> Option<usize> {
        self.look_up(Seed::hash(self.seed.begin(name)), |entry| entry.parts().0 == name)
    }

    #[inline]
    fn look_up(&self, hash: u64, is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
        let set = &self.places[hash as usize % SETS];
        let mut same = set.with_tag(tag(hash));
        while same != 0 {
            let age = self.age(set.numbers[same.trailing_zeros() as usize % WAYS]);
            if self.entries.get(age.wrapping_sub(1)).is_some_and(&is_it) {
                return Some(entries::COUNT + age);
            }
            same &= same - 1;
        }
        None
    }

    /// 1 for the newest entry.
    fn age(&self, number: u16) -> usize {
        usize::from(self.next.wrapping_sub(number))
    }

    /// Puts a field that [fits](Self::fits) and is not there into the table if it is expected to come again, or at least its
    /// name, which no table has. Then the other side must do the same.
    pub(super) fn admit(&mut self, sought: &Sought<'_>, name_lacks: bool) -> bool {
        let size = sought.name.len() + sought.value.len() + OVERHEAD;
        let name_hash = Seed::hash(sought.begun);
        let for_name = name_lacks && self.sees(name_hash) && size <= self.limit / PART_FOR_NAME;
        if !self.sees(sought.hash) && !for_name {
            return false;
        }
        self.evict(self.limit - size);
        self.size += size;
        let text = [sought.name, sought.value].concat().into();
        self.entries.push_front(Entry { text, name: sought.name.len() });
        self.note(sought.hash);
        // Once is enough: fields of one name would take all places of a set.
        if name_lacks {
            self.note(name_hash);
        }
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Whether this was seen before, and not too long ago.
    fn sees(&mut self, hash: u64) -> bool {
        let rest = (hash >> 32) as u32;
        let set = &mut self.seen[(hash >> 8) as usize % SEEN_SETS];
        let is_seen = set.contains(&rest);
        if !is_seen {
            set.rotate_right(1);
            set[0] = rest;
        }
        is_seen
    }

    /// Makes the next entry be found by this hash, in place of the oldest.
    fn note(&mut self, hash: u64) {
        let set = &mut self.places[hash as usize % SETS];
        let places = std::iter::zip(&mut set.tags, &mut set.numbers);
        if let Some(oldest) = places.max_by_key(|(_, number)| self.next.wrapping_sub(**number)) {
            *oldest.0 = tag(hash);
            *oldest.1 = self.next;
        }
    }

    /// Takes the oldest entries out until so many bytes are left.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

impl Places {
    /// A bit for each place of this tag.
    fn with_tag(&self, tag: u16) -> u32 {
        let bit = |(place, at): (usize, &u16)| u32::from(*at == tag) << place;
        self.tags.iter().enumerate().map(bit).sum()
    }
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

#[cfg(test)]
impl Repeats {
    /// The sizes of its entries.
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.entries.iter().map(Entry::size).collect()
    }
}
