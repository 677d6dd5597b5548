//! Takes over a partitioned store: fences former holders and completes the batches that they committed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::StoreId;
use tokio::{task::AbortHandle, time::Instant};

use super::{
    super::{
        EtcdConfig,
        call_error::CallError,
        client::{Client, RetryPolicy},
        key_layout::{self, Identity, Layout},
        proto::{KeyValue, TxnRequest, compare},
        random_id,
        state::EtcdState,
        watch_loop::read_meta,
        writer_lease::WriterLease,
    },
    cluster::{Cluster, CommitOutcome, Fence, RetryControl},
    conditional_write::{self, ConditionalWrite},
    intent,
    partition_map::{HOME, PartitionEntry, PartitionMap},
    state::{GAP_KEY, PartitionedState, Partitions},
};
use crate::{StoreError, StoreLocation};

/// Metadata key of the partition map.
pub(super) const MAP_KEY: &str = "map";
/// Metadata key of the fence in other partitions than the home.
pub(super) const FENCE_KEY: &str = "fence";
/// Time limit for completing one batch that a former holder committed.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// Metadata keys with their values, by name.
pub(super) type MetaKeys = HashMap<String, KeyValue>;

/// Gives up at a deadline, so that the next process tries again.
pub(super) struct RetryUntil(pub(super) Instant);

impl RetryControl for RetryUntil {
    fn should_give_up(&mut self, _problem: &str) -> bool {
        Instant::now() > self.0
    }
}

pub(super) fn refused(location: &StoreLocation, problem: &str) -> StoreError {
    StoreError::Refused { location: location.clone(), problem: problem.into() }
}

/// Opens the home partition, and creates it if absent.
pub(super) async fn open_home(config: &EtcdConfig) -> Result<Arc<EtcdState>, StoreError> {
    let (client, layout) = connect(config)?;
    let store_error = |failure: CallError| failure.into_store_error(&config.address.location());
    let mut meta = read_meta(&client, &layout).await.map_err(store_error)?;
    if meta.identity.is_none() {
        let identity = key_layout::encode_identity(Identity::Partition { id: random_id(&client)?, token: 0 });
        let create = TxnRequest {
            compare: vec![conditional_write::absent_compare(layout.identity_key())],
            success: vec![
                conditional_write::put(layout.identity_key(), identity),
                conditional_write::put(layout.last_key(), Bytes::new()),
                conditional_write::put(layout.meta_key(MAP_KEY), PartitionMap::home().encode().into()),
            ],
            failure: Vec::new(),
        };
        // Idempotent: a second attempt finds the store that the first attempt or another process created.
        client.txn(RetryPolicy::Repeatable, create).await.map_err(store_error)?;
        meta = read_meta(&client, &layout).await.map_err(store_error)?;
    }
    let identity = meta.identity.unwrap_or_default();
    match key_layout::decode_identity(&identity, &client.location)? {
        Identity::Partition { id, token: 0 } => {
            let mut shared = EtcdState::new(client, layout, id, identity, 0);
            shared.acquisition_writes_last = true;
            Ok(Arc::new(shared))
        }
        Identity::Partition { .. } => Err(refused(
            &client.location,
            "these keys are one partition of a store over several clusters; use the address of its home",
        )),
        Identity::SingleCluster(_) => Err(refused(
            &client.location,
            "this store is in one cluster; start the control plane once with --partitioned",
        )),
    }
}

fn connect(config: &EtcdConfig) -> Result<(Client, Layout), StoreError> {
    Ok((Client::new(config)?, Layout::for_partition(config.address.root())))
}

/// Acquires the writer lease. Returns its id, and the task that renews it.
pub(super) async fn acquire_lease(
    home: &Arc<EtcdState>,
    holder: &str,
    ttl: Duration,
) -> Result<(Arc<AtomicI64>, AbortHandle), StoreError> {
    let lease = WriterLease::acquire(home, holder, ttl)
        .await
        .map_err(|failure| failure.into_store_error(&home.client.location))?;
    let lease_id = Arc::new(AtomicI64::new(lease.id()));
    let keeper = tokio::spawn(lease.keep_alive(home.clone(), lease_id.clone())).abort_handle();
    Ok((lease_id, keeper))
}

/// Takes over every partition and completes committed batches. The caller must hold the writer lease.
pub(super) async fn open(home: Arc<EtcdState>, config: EtcdConfig) -> Result<PartitionedState, StoreError> {
    let location = &home.client.location;
    let (client, layout) = connect(&config)?;
    let meta =
        read_meta_keys(&client, &layout).await.map_err(|failure| failure.into_store_error(location))?;
    let map =
        meta.get(MAP_KEY).and_then(|kv| std::str::from_utf8(&kv.value).ok()).and_then(PartitionMap::decode);
    let map = map.ok_or_else(|| {
        refused(
            location,
            "its partition map cannot be read; restore an older snapshot, or start a later release",
        )
    })?;
    let fence = Fence::Holder(home.clone());
    let mut gaps = Vec::new();
    let mut clusters = vec![Arc::new(Cluster::new((client, layout), home.identity.clone(), fence, &meta))];
    gaps.extend(meta.contains_key(GAP_KEY).then_some(HOME));
    for (part, PartitionEntry { token, address }) in map.entries.iter().enumerate() {
        let Some(address) = address.clone() else { continue };
        let config = EtcdConfig { address, ..config.clone() };
        let identity = key_layout::encode_identity(Identity::Partition { id: home.id, token: *token });
        let (cluster, gap) = take_over(&config, identity, home.fence()).await?;
        clusters.push(Arc::new(cluster));
        gaps.extend(gap.then_some(part));
    }
    let partitions = Partitions { map, clusters };
    let mut newest = partitions.clusters.iter().map(|cluster| cluster.newest()).max().unwrap_or(0);
    for (name, kv) in meta {
        if let Some(number) = name.strip_prefix("intent/").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            newest += 1;
            replay_intent(&partitions, (number, newest), kv.value).await?;
        }
    }
    if !gaps.is_empty() {
        newest += 1;
        clear_gaps(&partitions, &gaps, newest).await?;
    }
    home.commit_log.skip_to(newest);
    Ok(PartitionedState::new(home, config, partitions, newest))
}

/// Writes this process's fence to a partition, so that former holders can write nothing there.
pub(super) async fn take_over(
    config: &EtcdConfig,
    identity: Bytes,
    fence: u64,
) -> Result<(Cluster, bool), StoreError> {
    let (client, layout) = connect(config)?;
    let location = client.location.clone();
    let store_error = |failure: CallError| failure.into_store_error(&location);
    let text = fence.to_be_bytes().to_vec();
    let stamp_txn = TxnRequest {
        compare: vec![
            conditional_write::value_compare(
                layout.identity_key(),
                compare::Result::Equal,
                identity.to_vec(),
            ),
            conditional_write::value_compare(layout.meta_key(FENCE_KEY), compare::Result::Less, text.clone()),
        ],
        success: vec![conditional_write::put(layout.meta_key(FENCE_KEY), text.clone().into())],
        failure: Vec::new(),
    };
    client.txn(RetryPolicy::Repeatable, stamp_txn).await.map_err(store_error)?;
    let meta = read_meta_keys(&client, &layout).await.map_err(store_error)?;
    if meta.get("store").is_none_or(|kv| kv.value != identity) {
        return Err(refused(
            &location,
            "this partition of the store is missing or was replaced; restore a snapshot of it",
        ));
    }
    if meta.get(FENCE_KEY).is_none_or(|kv| kv.value[..] != text[..]) {
        let problem = "another process took over meanwhile, or the home went back to an older copy: then start once \
                       with --new-store-id";
        return Err(refused(&location, problem));
    }
    let gap = meta.contains_key(GAP_KEY);
    Ok((Cluster::new((client, layout), identity, Fence::Stamped(fence), &meta), gap))
}

/// Reads all metadata keys of a partition.
pub(super) async fn read_meta_keys(client: &Client, layout: &Layout) -> Result<MetaKeys, CallError> {
    let start = layout.meta_key("").len();
    let response = client.range(layout.meta_request()).await?;
    let named = response
        .kvs
        .into_iter()
        .map(|kv| (String::from_utf8_lossy(&kv.key[start.min(kv.key.len())..]).into_owned(), kv));
    Ok(named.collect())
}

/// Completes a batch that a former holder committed, under a new revision. Some readers may have received the former
/// revision; all others must still be sent the batch.
async fn replay_intent(
    partitions: &Partitions,
    (number, new_number): (u64, u64),
    text: Bytes,
) -> Result<(), StoreError> {
    let home = &partitions.clusters[HOME];
    let unreadable =
        || refused(&home.client.location, "a committed batch cannot be read; start a later release");
    let mut parts = BTreeMap::<usize, Vec<_>>::new();
    for (part, op) in intent::decode(text).ok_or_else(unreadable)? {
        parts.entry(part).or_default().push(op);
    }
    tracing::info!(
        number,
        parts = parts.len(),
        "a committed batch was not applied in every partition and is applied now"
    );
    for (part, ops) in parts {
        let cluster = partitions.clusters.get(part).ok_or_else(unreadable)?;
        commit_repair(cluster, new_number, ConditionalWrite::puts(&cluster.layout, &ops, new_number)).await?;
    }
    commit_repair(home, new_number, ConditionalWrite::raw(vec![(intent::key(&home.layout, number), None)]))
        .await
}

/// Clears recorded gaps. The former process skipped these revisions without publishing their batches under new ones.
/// A reader at the newest revision may therefore lack the batches. This process begins one revision later, so that
/// readers take a snapshot.
async fn clear_gaps(partitions: &Partitions, parts: &[usize], number: u64) -> Result<(), StoreError> {
    for part in parts {
        let cluster = &partitions.clusters[*part];
        commit_repair(cluster, number, ConditionalWrite::raw(vec![(cluster.layout.meta_key(GAP_KEY), None)]))
            .await?;
    }
    Ok(())
}

async fn commit_repair(
    cluster: &Arc<Cluster>,
    number: u64,
    change: ConditionalWrite,
) -> Result<(), StoreError> {
    let mut lane = cluster.acquire_lane().await;
    let outcome = lane.commit(number, &change, &mut RetryUntil(Instant::now() + REPAIR_TIMEOUT)).await;
    let location = &cluster.client.location;
    match outcome.map_err(|failure| failure.into_store_error(location))? {
        CommitOutcome::Written => Ok(()),
        _ => Err(refused(location, "another process took over meanwhile; start again")),
    }
}

/// Gives every partition the new id, the home last, so that an interrupted run can be repeated.
pub(super) async fn regenerate_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
    let before = open_home(config).await?;
    let store_error = |failure: CallError| failure.into_store_error(&before.client.location);
    let (client, layout) = connect(config)?;
    let meta = read_meta_keys(&client, &layout).await.map_err(store_error)?;
    let map =
        meta.get(MAP_KEY).and_then(|kv| std::str::from_utf8(&kv.value).ok()).and_then(PartitionMap::decode);
    let map = map.ok_or_else(|| refused(&client.location, "its partition map cannot be read"))?;
    let id = random_id(&client)?;
    for PartitionEntry { token, address } in map.entries.iter().rev() {
        let config = match address.clone() {
            Some(address) => EtcdConfig { address, ..config.clone() },
            None => config.clone(),
        };
        renew_identity(&config, *token, id).await?;
    }
    Ok(id)
}

async fn renew_identity(config: &EtcdConfig, token: u64, id: StoreId) -> Result<(), StoreError> {
    let (client, layout) = connect(config)?;
    let store_error = |failure: CallError| failure.into_store_error(&client.location);
    let found = read_meta(&client, &layout).await.map_err(store_error)?.identity.unwrap_or_default();
    match key_layout::decode_identity(&found, &client.location)? {
        Identity::Partition { token: found, .. } if found == token => {}
        _ => {
            return Err(refused(
                &client.location,
                "this partition of the store was replaced; restore a snapshot of it",
            ));
        }
    }
    let renew = TxnRequest {
        compare: vec![conditional_write::value_compare(
            layout.identity_key(),
            compare::Result::Equal,
            found.to_vec(),
        )],
        success: vec![
            conditional_write::put(
                layout.identity_key(),
                key_layout::encode_identity(Identity::Partition { id, token }),
            ),
            // Revisions of a restored home may be lower than the previous fence.
            conditional_write::put(layout.meta_key(FENCE_KEY), 0_u64.to_be_bytes().to_vec().into()),
        ],
        failure: Vec::new(),
    };
    match client.txn(RetryPolicy::NonRepeatable, renew).await.map_err(store_error)?.succeeded {
        true => Ok(()),
        false => Err(refused(&client.location, "another process gave it a new id at the same time; retry")),
    }
}
