//! Layout of a store's keys in etcd, and its metadata keys.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Entry;

use super::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::{StoreError, StoreLocation};

/// Format of a store in one cluster.
const FORMAT_SINGLE_CLUSTER: u32 = 1;
/// Format of each partition of a store over several clusters. This is also the newest format that this release reads.
const FORMAT_PARTITION: u32 = 2;
/// Prefix of the value of the metadata key `store`.
const MAGIC: &[u8] = b"fairmesh";

/// The keys of one store. Below its root are `rib`, with the records, and `meta`, with these keys:
/// * `store`: format and id, written once.
/// * `last`: written with every batch. Its revision is the newest of *this* store, even if etcd contains other keys,
///   and a batch has a revision even if it only deletes absent keys.
/// * `holder`: the process that may write, attached to its lease. The revision that created the key is the fence.
#[derive(Debug)]
pub(super) struct Layout {
    /// Prefix of record keys.
    records: String,
    /// Prefix of metadata keys.
    meta: String,
}

/// Identity of the store below a root, from the value of the metadata key `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// A store in one cluster.
    SingleCluster(StoreId),
    /// A partition of a store over several clusters.
    Partition {
        /// Id of the store.
        id: StoreId,
        /// Identifies the partition; 0 is the home partition, which has the partition map.
        token: u64,
    },
}

/// Values of a store's metadata keys.
#[derive(Clone, Debug)]
pub(super) struct StoreMeta {
    /// Newest revision of this store.
    pub(super) last: u64,
    /// Revision of the cluster when the metadata was read.
    pub(super) revision: u64,
    /// Value of the metadata key `store`.
    pub(super) identity: Option<Bytes>,
    /// Holder of the writer lease: the fence, and the holder's name for messages.
    pub(super) holder: Option<(u64, String)>,
}

impl Layout {
    pub(super) fn new(root: &str) -> Self {
        Self { records: format!("{root}/rib"), meta: format!("{root}/meta/") }
    }

    /// Layout of one partition of a store over several clusters. Its records have a separate prefix, so that a store
    /// in one cluster can be converted by a copy that takes effect only once complete.
    pub(super) fn for_partition(root: &str) -> Self {
        Self { records: format!("{root}/records"), meta: format!("{root}/meta/") }
    }

    /// Key of the metadata entry `name`.
    pub(super) fn meta_key(&self, name: &str) -> Bytes {
        format!("{}{name}", self.meta).into()
    }

    /// Key of a record.
    pub(super) fn record_key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.records).into()
    }

    /// Returns the record's key if `key` is below the record prefix. Keys that are not UTF-8 are foreign.
    pub(super) fn parse_record_key<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.records)?;
        key.starts_with('/').then_some(key)
    }

    /// Key of the store's format and id.
    pub(super) fn identity_key(&self) -> Bytes {
        format!("{}store", self.meta).into()
    }

    /// Metadata key that every batch writes.
    pub(super) fn last_key(&self) -> Bytes {
        format!("{}last", self.meta).into()
    }

    /// Metadata key that names the holder of the writer lease.
    pub(super) fn holder_key(&self) -> Bytes {
        format!("{}holder", self.meta).into()
    }

    /// Key range of all records.
    pub(super) fn record_range(&self) -> Range<Bytes> {
        // The character '0' follows '/'.
        format!("{}/", self.records).into()..format!("{}0", self.records).into()
    }

    /// Key range of the whole store; foreign keys may lie within it.
    pub(super) fn full_range(&self) -> Range<Bytes> {
        self.meta.clone().into()..self.record_range().end
    }

    /// Returns the request that reads [`StoreMeta`].
    pub(super) fn meta_request(&self) -> RangeRequest {
        let mut end = self.meta.clone().into_bytes();
        end.pop();
        end.push(b'0');
        RangeRequest { key: self.meta.clone().into(), range_end: end.into(), ..RangeRequest::default() }
    }

    /// Parses the response to [`Layout::meta_request`].
    pub(super) fn parse_meta(&self, response: RangeResponse) -> StoreMeta {
        let revision = response.header.map_or(0, |header| number(header.revision));
        let mut meta = StoreMeta { last: 0, revision, identity: None, holder: None };
        for kv in response.kvs {
            if kv.key == self.identity_key() {
                meta.identity = Some(kv.value);
            } else if kv.key == self.last_key() {
                meta.last = number(kv.mod_revision);
            } else if kv.key == self.holder_key() {
                let name = String::from_utf8_lossy(&kv.value).into_owned();
                meta.holder = Some((number(kv.create_revision), name));
            }
        }
        meta
    }

    /// Parses a record and its key.
    pub(super) fn entry(&self, kv: KeyValue) -> Option<(Arc<str>, Entry)> {
        let key = Arc::from(self.parse_record_key(&kv.key)?);
        Some((key, Entry { value: kv.value, revision: number(kv.mod_revision) }))
    }
}

/// Converts a revision of etcd, which is never negative.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Converts a revision to a field of an etcd request.
pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Encodes the value of the metadata key `store`.
pub(super) fn encode_identity(identity: Identity) -> Bytes {
    match identity {
        Identity::SingleCluster(id) => {
            [MAGIC, &FORMAT_SINGLE_CLUSTER.to_be_bytes(), &id.0.to_be_bytes()].concat().into()
        }
        Identity::Partition { id, token } => {
            [MAGIC, &FORMAT_PARTITION.to_be_bytes(), &id.0.to_be_bytes(), &token.to_be_bytes()]
                .concat()
                .into()
        }
    }
}

/// Decodes the value of the metadata key `store`.
pub(super) fn decode_identity(identity: &[u8], location: &StoreLocation) -> Result<Identity, StoreError> {
    let foreign = || StoreError::Refused {
        location: location.clone(),
        problem:
            "the keys below this root are not those of a Fairmesh store; give another root in the address"
                .into(),
    };
    let (format, rest) =
        identity.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk).ok_or_else(foreign)?;
    let (id, token) = rest.split_first_chunk().ok_or_else(foreign)?;
    let id = StoreId(u128::from_be_bytes(*id));
    match (u32::from_be_bytes(*format), <[u8; 8]>::try_from(token)) {
        (FORMAT_SINGLE_CLUSTER, _) if token.is_empty() => Ok(Identity::SingleCluster(id)),
        (FORMAT_PARTITION, Ok(token)) => Ok(Identity::Partition { id, token: u64::from_be_bytes(token) }),
        (format, _) if format > FORMAT_PARTITION => Err(StoreError::NewerFormat {
            location: location.clone(),
            found: format.into(),
            known: FORMAT_PARTITION.into(),
        }),
        _ => Err(foreign()),
    }
}

/// Decodes the id of a store in one cluster. Refuses partitions.
pub(super) fn single_cluster_id(identity: &[u8], location: &StoreLocation) -> Result<StoreId, StoreError> {
    match decode_identity(identity, location)? {
        Identity::SingleCluster(id) => Ok(id),
        Identity::Partition { .. } => Err(StoreError::Refused {
            location: location.clone(),
            problem:
                "these keys are one partition of a store over several clusters; use the address of its home"
                    .into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_etcd_keys_below_record_prefix_are_records() {
        let layout = Layout::new("/mesh");
        assert_eq!(
            layout.parse_record_key(&layout.record_key("/t/shop/services/cart")),
            Some("/t/shop/services/cart")
        );
        for other in ["/mesh/meta/last", "/mesh/ribs/x", "/mesh/rib", "/other/rib/x"] {
            assert_eq!(layout.parse_record_key(other.as_bytes()), None, "{other}");
        }
        assert_eq!(layout.parse_record_key(b"/mesh/rib/\xff"), None);
        let all = layout.full_range();
        for own in
            [layout.identity_key(), layout.last_key(), layout.record_key("/"), layout.record_key("/zzz")]
        {
            assert!(all.contains(&own), "{own:?}");
        }
    }

    #[test]
    fn store_identity_round_trips_and_other_values_are_refused() {
        let location = StoreLocation::from("etcd://a/b");
        assert_eq!(
            single_cluster_id(&encode_identity(Identity::SingleCluster(StoreId(77))), &location).unwrap(),
            StoreId(77)
        );
        let mut newer = encode_identity(Identity::SingleCluster(StoreId(77))).to_vec();
        newer[11] = 3;
        assert!(matches!(
            single_cluster_id(&newer, &location),
            Err(StoreError::NewerFormat { found: 3, known: 2, .. })
        ));
        let part = Identity::Partition { id: StoreId(77), token: 5 };
        assert_eq!(decode_identity(&encode_identity(part), &location).unwrap(), part);
        assert!(
            single_cluster_id(&encode_identity(part), &location)
                .unwrap_err()
                .to_string()
                .contains("several clusters")
        );
        for foreign in
            [&b""[..], b"hello", &encode_identity(Identity::SingleCluster(StoreId(7)))[..27], &[0; 28]]
        {
            let refusal = single_cluster_id(foreign, &location).unwrap_err().to_string();
            assert!(refusal.contains("give another root"), "{refusal}");
        }
    }
}
