//! Converts a store in one cluster to a partitioned store.
//!
//! Records are copied to a new format below another prefix. One transaction writes the new identity, with which the
//! copies take effect. Converting a store in use was rejected: each control plane would have to read both formats
//! meanwhile.

use std::time::Duration;

use bytes::Bytes;

use super::{
    super::{
        EtcdConfig, EtcdStore,
        call_error::CallError,
        client::{Client, RetryPolicy},
        key_layout::{self, Identity, Layout, number, signed},
        load::RangeScan,
        proto::{Compare, KeyValue, RangeRequest, RequestOp, TxnRequest, compare},
        watch_loop::read_meta,
    },
    conditional_write,
    garbage_collection::MAX_KEYS_PER_TXN,
    open::{MAP_KEY, open_home, refused},
    partition_map::PartitionMap,
};
use crate::{Store, StoreError};

/// Maximum size of the values in one transaction, in bytes.
pub(super) const MAX_BYTES_PER_TXN: usize = 1_000_000;

/// Whether a store is partitioned; `None` if there is no store.
///
/// # Errors
/// [`StoreError`] when etcd does not respond or denies access, or the keys are not those of a store.
pub async fn is_partitioned(config: &EtcdConfig) -> Result<Option<bool>, StoreError> {
    let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
    let meta =
        read_meta(&client, &layout).await.map_err(|failure| failure.into_store_error(&client.location))?;
    let identity =
        meta.identity.map(|identity| key_layout::decode_identity(&identity, &client.location)).transpose()?;
    Ok(identity.map(|identity| matches!(identity, Identity::Partition { .. })))
}

/// Reads a record that belongs to no service, without opening the store; `None` if there is no store or no such record.
///
/// # Errors
/// As for [`is_partitioned`].
pub async fn read_home_record(config: &EtcdConfig, key: &str) -> Result<Option<Bytes>, StoreError> {
    let Some(is_partitioned) = is_partitioned(config).await? else { return Ok(None) };
    let root = config.address.root();
    let layout = if is_partitioned { Layout::for_partition(root) } else { Layout::new(root) };
    let client = Client::new(config)?;
    let request = RangeRequest { key: layout.record_key(key), ..RangeRequest::default() };
    let response =
        client.range(request).await.map_err(|failure| failure.into_store_error(&client.location))?;
    let entry = response.kvs.into_iter().next().and_then(|kv| match is_partitioned {
        true => conditional_write::decode_entry(&layout, kv),
        false => layout.entry(kv),
    });
    Ok(entry.map(|(_, entry)| entry.value))
}

/// See [`super::PartitionedStore::convert`].
pub(super) async fn convert(config: &EtcdConfig, holder: &str, ttl: Duration) -> Result<(), StoreError> {
    match is_partitioned(config).await? {
        Some(true) => return Ok(()),
        None => return open_home(config).await.map(drop),
        Some(false) => {}
    }
    let store = EtcdStore::open(config).await?;
    store.acquire_writer_lease(holder, ttl).await?;
    let converted = Conversion::new(&store, config.address.root()).run().await;
    store.close().await;
    let location = config.address.location();
    match converted.map_err(|failure| failure.into_store_error(&location))? {
        true => Ok(()),
        false => Err(refused(&location, "another process acquired the writer lease meanwhile; start again")),
    }
}

struct Conversion<'a> {
    store: &'a EtcdStore,
    from: Layout,
    to: Layout,
}

impl<'a> Conversion<'a> {
    fn new(store: &'a EtcdStore, root: &str) -> Self {
        Self { store, from: Layout::new(root), to: Layout::for_partition(root) }
    }

    /// Runs the conversion. Returns false if the writer lease is lost.
    async fn run(&self) -> Result<bool, CallError> {
        let client = &self.store.shared.client;
        let records = self.to.record_range();
        // Records left by an interrupted conversion.
        if !self.write(vec![conditional_write::delete(records.start, records.end)]).await? {
            return Ok(false);
        }
        let meta = self.store.shared.meta().await?;
        let mut scan = RangeScan::new(self.from.record_range(), meta.revision);
        let mut records = 0;
        while let Some(kvs) = scan.next(client).await? {
            records += kvs.len();
            for puts in self.puts(kvs) {
                if !self.write(puts).await? {
                    return Ok(false);
                }
            }
        }
        let identity =
            key_layout::encode_identity(Identity::Partition { id: self.store.shared.id, token: 0 });
        let last: Bytes = meta.last.to_be_bytes().to_vec().into();
        let switch = vec![
            conditional_write::put(self.to.identity_key(), identity.clone()),
            conditional_write::put(self.to.meta_key(MAP_KEY), PartitionMap::home().encode().into()),
            conditional_write::put(self.to.meta_key("lane/00"), last),
        ];
        let written = self.write(switch).await;
        if !matches!(written, Ok(true)) && read_meta(client, &self.from).await?.identity != Some(identity) {
            return written;
        }
        tracing::info!(records, revision = meta.last, "the store is partitioned now");
        Ok(true)
    }

    /// Returns the writes of records in the new format, split into transactions within the bounds.
    fn puts(&self, kvs: Vec<KeyValue>) -> Vec<Vec<RequestOp>> {
        let (mut txns, mut bytes) = (Vec::<Vec<_>>::new(), 0);
        for kv in kvs {
            let Some(key) = self.from.parse_record_key(&kv.key).map(|key| self.to.record_key(key)) else {
                continue;
            };
            let size = key.len() + kv.value.len();
            let put = conditional_write::put(
                key,
                conditional_write::encode_record(number(kv.mod_revision), &kv.value),
            );
            match txns.last_mut() {
                Some(txn) if txn.len() < MAX_KEYS_PER_TXN && bytes + size <= MAX_BYTES_PER_TXN => {
                    txn.push(put);
                    bytes += size;
                }
                _ => {
                    txns.push(vec![put]);
                    bytes = size;
                }
            }
        }
        txns
    }

    /// Writes only while the store is unconverted and the lease is held, so that a delayed transaction has no effect.
    async fn write(&self, success: Vec<RequestOp>) -> Result<bool, CallError> {
        let shared = &self.store.shared;
        let identity = conditional_write::value_compare(
            self.from.identity_key(),
            compare::Result::Equal,
            shared.identity.to_vec(),
        );
        let fenced = Compare {
            operand: Some(compare::Operand::CreateRevision(signed(shared.fence()))),
            ..conditional_write::absent_compare(self.from.holder_key())
        };
        let txn = TxnRequest { compare: vec![identity, fenced], success, failure: Vec::new() };
        Ok(shared.client.txn(RetryPolicy::Repeatable, txn).await?.succeeded)
    }
}
