//! The holders of copies: each combination of endpoint, role and state once, by index.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `fairhold` |
//! | 4, 4 | format version; number of entries |
//! | 16 | store id |
//! | 8 | XXH3 of the following bytes |
//! | 12 each | offset of the names (4), length of the instance (2) and of the role (2), state (4) |
//! | rest | the names |
//!
//! Numbers are little endian.

use std::{collections::HashMap, ops::Range};

use bytes::{BufMut, Bytes};
use fairmesh_model::{InstanceId, ReplicaState, Role, StoreId};
use xxhash_rust::xxh3::xxh3_64;

use super::InvalidTable;

const MAGIC: &[u8; 8] = b"fairhold";
const VERSION: u32 = 1;
const HEADER: usize = 40;
const ENTRY: usize = 12;

/// A holder of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding<'a> {
    /// The endpoint.
    pub instance: &'a str,
    /// The role of the copy.
    pub role: &'a str,
    /// The state of the copy. Copies receive calls only in some states.
    pub state: ReplicaState,
}

/// All combinations of endpoint, role and state that hold a copy, read in place.
#[derive(Clone, Debug)]
pub struct Holdings {
    bytes: Bytes,
    store: StoreId,
    len: u32,
}

/// Assigns indices to combinations in the order of first use. Indices are never reassigned, so an older table remains
/// valid with a longer list.
#[derive(Clone, Debug, Default)]
pub struct HoldingInterner {
    known: HashMap<InstanceId, Vec<(Role, ReplicaState, u32)>>,
    /// Combinations by index.
    all: Vec<(InstanceId, Role, ReplicaState)>,
}

impl HoldingInterner {
    /// Returns the index of a combination. Assigns one if it has none.
    pub fn intern(&mut self, instance: &InstanceId, role: &Role, state: ReplicaState) -> u32 {
        let mut known = self.known.get(instance).into_iter().flatten();
        if let Some((_, _, number)) = known.find(|(r, s, _)| r == role && *s == state) {
            return *number;
        }
        // The number is at most the number of copies, which fits into 32 bits.
        let number = self.all.len() as u32;
        self.known.entry(instance.clone()).or_default().push((role.clone(), state, number));
        self.all.push((instance.clone(), role.clone(), state));
        number
    }

    /// Number of combinations.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no combinations.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Encodes the list.
    pub fn encode(&self, store: StoreId) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.all.len() * ENTRY);
        let mut names = Vec::new();
        for (instance, role, state) in &self.all {
            let (instance, role) = (instance.as_str().as_bytes(), role.as_str().as_bytes());
            body.put_u32_le(names.len() as u32);
            // The model bounds the length of names.
            body.put_u16_le(instance.len() as u16);
            body.put_u16_le(role.len() as u16);
            body.put_u32_le(match state {
                ReplicaState::Starting => 0,
                ReplicaState::Serving => 1,
                ReplicaState::Stopping => 2,
            });
            names.extend_from_slice(instance);
            names.extend_from_slice(role);
        }
        body.append(&mut names);
        // Shared memory consists of whole words.
        body.resize(body.len().next_multiple_of(8), 0);
        let mut all = Vec::with_capacity(HEADER + body.len());
        all.put_slice(MAGIC);
        all.put_u32_le(VERSION);
        all.put_u32_le(self.all.len() as u32);
        all.put_u128_le(store.0);
        all.put_u64_le(0);
        all.append(&mut body);
        write_checksum(&mut all);
        all
    }
}

impl Holdings {
    /// Reads a list in place after a complete check.
    ///
    /// # Errors
    /// The first defect found.
    pub fn read(bytes: Bytes) -> Result<Self, InvalidTable> {
        let header = bytes.get(..HEADER).ok_or(InvalidTable("the list of holders is truncated"))?;
        if &header[..8] != MAGIC || u32_at(header, 8) != Some(VERSION) {
            return Err(InvalidTable("the list of holders has another format"));
        }
        let len = u32_at(header, 12).unwrap_or_default();
        let store = header[16..32].first_chunk().map_or(0, |id| u128::from_le_bytes(*id));
        let checksum = header[32..].first_chunk().map(|sum| u64::from_le_bytes(*sum));
        if checksum != Some(xxh3_64(&bytes[HEADER..])) {
            return Err(InvalidTable("the checksum of the list of holders is wrong"));
        }
        let holdings = Self { bytes, store: StoreId(store), len };
        if (0..len).any(|number| holdings.get(number).is_none()) {
            return Err(InvalidTable("a holder has no valid name"));
        }
        Ok(holdings)
    }

    /// ID of the store from which the map comes.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Number of combinations.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no combinations.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The combination with this index.
    pub fn get(&self, number: u32) -> Option<Holding<'_>> {
        if number >= self.len {
            return None;
        }
        let entry = self.bytes.get(HEADER + number as usize * ENTRY..)?;
        let names = self.bytes.get(HEADER + self.len as usize * ENTRY..)?;
        let from = u32_at(entry, 0)? as usize;
        let lengths = u32_at(entry, 4)? as usize;
        let (middle, end) = (from + (lengths & 0xffff), from + (lengths & 0xffff) + (lengths >> 16));
        let name = |range: Range<usize>| std::str::from_utf8(names.get(range)?).ok();
        let state = match u32_at(entry, 8)? {
            0 => ReplicaState::Starting,
            1 => ReplicaState::Serving,
            2 => ReplicaState::Stopping,
            _ => return None,
        };
        Some(Holding { instance: name(from..middle)?, role: name(middle..end)?, state })
    }

    /// All combinations, by index.
    pub fn iter(&self) -> impl Iterator<Item = Holding<'_>> {
        (0..self.len).filter_map(|number| self.get(number))
    }
}

/// Writes the checksum.
pub(super) fn write_checksum(list: &mut [u8]) {
    let (header, body) = list.split_at_mut(HEADER);
    header[HEADER - 8..].copy_from_slice(&xxh3_64(body).to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}
