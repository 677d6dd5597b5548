//! From a store in one cluster to one that may have more.
//!
//! Records get another form, in a folder beside the former, and count once the mark says so, in one transaction. While the
//! store is served was rejected: each of its control planes would have to read both forms for as long as it takes.

use std::time::Duration;

use bytes::Bytes;

use super::{
    super::{
        EtcdConfig, EtcdStore,
        client::{Again, Client},
        failure::Failure,
        follow::read_state,
        layout::{self, Layout, Mark, number, signed},
        load::Scan,
        proto::{Compare, KeyValue, RequestOp, TxnRequest, compare},
    },
    change,
    map::PartitionMap,
    open::{MAP, home, refused},
    sweep::MAX_KEYS,
};
use crate::{Store, StoreError};

/// The most bytes of values in one transaction.
pub(super) const MAX_BYTES: usize = 1_000_000;

/// Whether a store is made to lie in several clusters; `None` where there is no store.
///
/// # Errors
/// [`StoreError`] when etcd does not answer or denies access, or the keys are not those of a store.
pub async fn is_partitioned(config: &EtcdConfig) -> Result<Option<bool>, StoreError> {
    let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
    let state = read_state(&client, &layout).await.map_err(|failure| failure.reading(&client.place))?;
    let mark = state.mark.map(|mark| layout::read_mark(&mark, &client.place)).transpose()?;
    Ok(mark.map(|mark| matches!(mark, Mark::Part { .. })))
}

/// See [`super::PartitionedStore::convert`].
pub(super) async fn convert(config: &EtcdConfig, who: &str, term: Duration) -> Result<(), StoreError> {
    match is_partitioned(config).await? {
        Some(true) => return Ok(()),
        None => return home(config).await.map(drop),
        Some(false) => {}
    }
    let store = EtcdStore::open(config).await?;
    store.hold(who, term).await?;
    let converted = Conversion::new(&store, config.address.root()).run().await;
    store.close().await;
    let place = config.address.place();
    match converted.map_err(|failure| failure.reading(&place))? {
        true => Ok(()),
        false => Err(refused(&place, "another process took the store over meanwhile; start again")),
    }
}

struct Conversion<'a> {
    store: &'a EtcdStore,
    from: Layout,
    to: Layout,
}

impl<'a> Conversion<'a> {
    fn new(store: &'a EtcdStore, root: &str) -> Self {
        Self { store, from: Layout::new(root), to: Layout::of_part(root) }
    }

    /// Whether it is done; false when the store is not held any more.
    async fn run(&self) -> Result<bool, Failure> {
        let client = &self.store.shared.client;
        let records = self.to.records();
        // Of a conversion that was cut short.
        if !self.write(vec![change::delete(records.start, records.end)]).await? {
            return Ok(false);
        }
        let state = self.store.shared.state().await?;
        let mut scan = Scan::new(self.from.records(), state.revision);
        let mut records = 0;
        while let Some(kvs) = scan.next(client).await? {
            records += kvs.len();
            for puts in self.puts(kvs) {
                if !self.write(puts).await? {
                    return Ok(false);
                }
            }
        }
        let mark = layout::mark(Mark::Part { id: self.store.shared.id, token: 0 });
        let last: Bytes = state.last.to_be_bytes().to_vec().into();
        let flip = vec![
            change::put(self.to.store(), mark.clone()),
            change::put(self.to.meta(MAP), PartitionMap::home().encode().into()),
            change::put(self.to.meta("lane/00"), last),
        ];
        let written = self.write(flip).await;
        if !matches!(written, Ok(true)) && read_state(client, &self.from).await?.mark != Some(mark) {
            return written;
        }
        tracing::info!(records, revision = state.last, "the store may have several parts now");
        Ok(true)
    }

    /// Records in their new form, in transactions within bounds.
    fn puts(&self, kvs: Vec<KeyValue>) -> Vec<Vec<RequestOp>> {
        let (mut txns, mut bytes) = (Vec::<Vec<_>>::new(), 0);
        for kv in kvs {
            let Some(key) = self.from.record_at(&kv.key).map(|key| self.to.record(key)) else { continue };
            let size = key.len() + kv.value.len();
            let put = change::put(key, change::numbered(number(kv.mod_revision), &kv.value));
            match txns.last_mut() {
                Some(txn) if txn.len() < MAX_KEYS && bytes + size <= MAX_BYTES => {
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

    /// Writes while the store is in one cluster and held: what comes late then does nothing.
    async fn write(&self, success: Vec<RequestOp>) -> Result<bool, Failure> {
        let shared = &self.store.shared;
        let mark = change::value(self.from.store(), compare::Result::Equal, shared.mark.to_vec());
        let held = Compare {
            operand: Some(compare::Operand::CreateRevision(signed(shared.held()))),
            ..change::absent(self.from.holder())
        };
        let txn = TxnRequest { compare: vec![mark, held], success, failure: Vec::new() };
        Ok(shared.client.txn(Again::Always, txn).await?.succeeded)
    }
}
