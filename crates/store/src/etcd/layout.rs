//! Which keys a store has in etcd, and what stands at those that are not records.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Entry;

use super::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::{Place, StoreError};

/// The format of a store in one cluster.
const WHOLE: u32 = 1;
/// The format of each part of a store over several clusters, and the newest that this release reads.
const PART: u32 = 2;
/// What begins the value of `store`.
const MAGIC: &[u8] = b"fairmesh";

/// The keys of one store. Below its root lie `rib` with the records, and `meta` with
/// * `store`: format and id, written once;
/// * `last`: written with every batch, so that its revision is the newest of *this* store, whatever else etcd holds, and
///   a batch has a revision though it deletes only what is not there;
/// * `holder`: who alone may write, for as long as its lease lasts. The revision that created it is the fence.
#[derive(Debug)]
pub(super) struct Layout {
    /// What stands before the key of a record.
    records: String,
    /// What stands before the other keys.
    meta: String,
}

/// What a mark says that keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A store in one cluster.
    Whole(StoreId),
    /// A part of one over several clusters.
    Part {
        /// The store's.
        id: StoreId,
        /// Which part; 0 is the home, which knows of the others.
        token: u64,
    },
}

/// What `meta` says.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The newest revision of this store.
    pub(super) last: u64,
    /// The revision of the cluster when it said so.
    pub(super) revision: u64,
    /// What stands at `store`.
    pub(super) mark: Option<Bytes>,
    /// Who holds the store: the fence, and words for people.
    pub(super) holder: Option<(u64, String)>,
}

impl Layout {
    pub(super) fn new(root: &str) -> Self {
        Self { records: format!("{root}/rib"), meta: format!("{root}/meta/") }
    }

    /// The keys of a part of a store over several clusters. Its records have a folder of their own, so that a store in
    /// one cluster becomes one with parts by a copy that counts only once it is whole.
    pub(super) fn of_part(root: &str) -> Self {
        Self { records: format!("{root}/records"), meta: format!("{root}/meta/") }
    }

    /// Another of the keys that are not records.
    pub(super) fn meta(&self, name: &str) -> Bytes {
        format!("{}{name}", self.meta).into()
    }

    /// Where a record lies.
    pub(super) fn record(&self, key: &str) -> Bytes {
        format!("{}{key}", self.records).into()
    }

    /// The record that lies at `key`, where one does. A key that is no text is nobody's.
    pub(super) fn record_at<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.records)?;
        key.starts_with('/').then_some(key)
    }

    /// Where format and id stand.
    pub(super) fn store(&self) -> Bytes {
        format!("{}store", self.meta).into()
    }

    /// What every batch writes.
    pub(super) fn last(&self) -> Bytes {
        format!("{}last", self.meta).into()
    }

    /// Who holds the store.
    pub(super) fn holder(&self) -> Bytes {
        format!("{}holder", self.meta).into()
    }

    /// Every record.
    pub(super) fn records(&self) -> Range<Bytes> {
        // '0' follows '/'.
        format!("{}/", self.records).into()..format!("{}0", self.records).into()
    }

    /// Everything of the store in one range; keys of others may lie within it.
    pub(super) fn everything(&self) -> Range<Bytes> {
        self.meta.clone().into()..self.records().end
    }

    /// Asks for [`State`].
    pub(super) fn ask_state(&self) -> RangeRequest {
        let mut end = self.meta.clone().into_bytes();
        end.pop();
        end.push(b'0');
        RangeRequest { key: self.meta.clone().into(), range_end: end.into(), ..RangeRequest::default() }
    }

    /// Reads the answer to [`Layout::ask_state`].
    pub(super) fn state(&self, answer: RangeResponse) -> State {
        let revision = answer.header.map_or(0, |header| number(header.revision));
        let mut state = State { last: 0, revision, mark: None, holder: None };
        for kv in answer.kvs {
            if kv.key == self.store() {
                state.mark = Some(kv.value);
            } else if kv.key == self.last() {
                state.last = number(kv.mod_revision);
            } else if kv.key == self.holder() {
                let who = String::from_utf8_lossy(&kv.value).into_owned();
                state.holder = Some((number(kv.create_revision), who));
            }
        }
        state
    }

    /// A record with its key, from what stands in etcd.
    pub(super) fn entry(&self, kv: KeyValue) -> Option<(Arc<str>, Entry)> {
        let key = Arc::from(self.record_at(&kv.key)?);
        Some((key, Entry { value: kv.value, revision: number(kv.mod_revision) }))
    }
}

/// A revision; etcd's are never negative.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// What to ask etcd for a revision.
pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// What stands at `store`.
pub(super) fn mark(mark: Mark) -> Bytes {
    match mark {
        Mark::Whole(id) => [MAGIC, &WHOLE.to_be_bytes(), &id.0.to_be_bytes()].concat().into(),
        Mark::Part { id, token } => {
            [MAGIC, &PART.to_be_bytes(), &id.0.to_be_bytes(), &token.to_be_bytes()].concat().into()
        }
    }
}

/// Reads what stands at `store`.
pub(super) fn read_mark(mark: &[u8], place: &Place) -> Result<Mark, StoreError> {
    let foreign = || StoreError::Refused {
        place: place.clone(),
        problem:
            "the keys below this root are not those of a Fairmesh store; give another root in the address"
                .into(),
    };
    let (format, rest) = mark.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk).ok_or_else(foreign)?;
    let (id, token) = rest.split_first_chunk().ok_or_else(foreign)?;
    let id = StoreId(u128::from_be_bytes(*id));
    match (u32::from_be_bytes(*format), <[u8; 8]>::try_from(token)) {
        (WHOLE, _) if token.is_empty() => Ok(Mark::Whole(id)),
        (PART, Ok(token)) => Ok(Mark::Part { id, token: u64::from_be_bytes(token) }),
        (format, _) if format > PART => {
            Err(StoreError::Newer { place: place.clone(), found: format.into(), known: PART.into() })
        }
        _ => Err(foreign()),
    }
}

/// The id of a store in one cluster.
pub(super) fn id_in(mark: &[u8], place: &Place) -> Result<StoreId, StoreError> {
    match read_mark(mark, place)? {
        Mark::Whole(id) => Ok(id),
        Mark::Part { .. } => Err(StoreError::Refused {
            place: place.clone(),
            problem: "the keys below this root are one part of a store over several clusters; open that"
                .into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_below_the_records_are_records() {
        let layout = Layout::new("/mesh");
        assert_eq!(layout.record_at(&layout.record("/t/shop/services/cart")), Some("/t/shop/services/cart"));
        for other in ["/mesh/meta/last", "/mesh/ribs/x", "/mesh/rib", "/other/rib/x"] {
            assert_eq!(layout.record_at(other.as_bytes()), None, "{other}");
        }
        assert_eq!(layout.record_at(b"/mesh/rib/\xff"), None);
        let all = layout.everything();
        for own in [layout.store(), layout.last(), layout.record("/"), layout.record("/zzz")] {
            assert!(all.contains(&own), "{own:?}");
        }
    }

    #[test]
    fn a_mark_holds_the_id_and_what_is_none_is_refused() {
        let place = Place::from("etcd://a/b");
        assert_eq!(id_in(&mark(Mark::Whole(StoreId(77))), &place).unwrap(), StoreId(77));
        let mut newer = mark(Mark::Whole(StoreId(77))).to_vec();
        newer[11] = 3;
        assert!(matches!(id_in(&newer, &place), Err(StoreError::Newer { found: 3, known: 2, .. })));
        let part = Mark::Part { id: StoreId(77), token: 5 };
        assert_eq!(read_mark(&mark(part), &place).unwrap(), part);
        assert!(id_in(&mark(part), &place).unwrap_err().to_string().contains("several clusters"));
        for foreign in [&b""[..], b"hello", &mark(Mark::Whole(StoreId(7)))[..27], &[0; 28]] {
            let refusal = id_in(foreign, &place).unwrap_err().to_string();
            assert!(refusal.contains("give another root"), "{refusal}");
        }
    }
}
