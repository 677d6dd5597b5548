//! The cluster to which services are moved.

use std::sync::Arc;

use super::{
    super::{
        super::{
            EtcdConfig,
            call_error::CallError,
            client::{Client, RetryPolicy},
            key_layout::{self, Identity, Layout},
            proto::TxnRequest,
            random_id,
            watch_loop::read_meta,
        },
        conditional_write,
        open::{self, FENCE_KEY, refused},
        partition_map::{MAX_PARTITIONS, PartitionEntry},
        state::PartitionedState,
    },
    PartitionMove,
    plan::MovePlan,
};
use crate::{EtcdAddress, StoreError};

/// The partition found at the target address.
#[derive(Clone, Debug)]
pub(super) struct TargetPartition {
    address: EtcdAddress,
    /// Index of the existing or new partition.
    part: usize,
    /// Token of the partition; `None` if the root has no store yet.
    token: Option<u64>,
    is_new: bool,
}

impl TargetPartition {
    pub(super) fn part(&self) -> usize {
        self.part
    }
}

impl PartitionedState {
    /// Inspects the target without changing it.
    pub(super) async fn find_target(&self, address: &EtcdAddress) -> Result<TargetPartition, StoreError> {
        let config = EtcdConfig { address: address.clone(), ..self.config.clone() };
        let (client, layout) = (Client::new(&config)?, Layout::for_partition(address.root()));
        let meta = read_meta(&client, &layout)
            .await
            .map_err(|failure| failure.into_store_error(&client.location))?;
        let partitions = self.partitions();
        let is_new = TargetPartition {
            address: address.clone(),
            part: partitions.map.entries.len(),
            token: None,
            is_new: true,
        };
        let Some(identity) = meta.identity else {
            return match is_new.part < MAX_PARTITIONS {
                true => Ok(is_new),
                false => Err(refused(
                    &client.location,
                    "the store has the maximum number of partitions; name one of them",
                )),
            };
        };
        match key_layout::decode_identity(&identity, &client.location)? {
            Identity::Partition { id, token } if id == self.home.id => {
                let known = partitions.map.entries.iter().position(|part| part.token == token);
                // An interrupted move left a token that the map does not contain.
                let part = known.unwrap_or(is_new.part);
                Ok(TargetPartition { part, token: Some(token), is_new: known.is_none(), ..is_new })
            }
            _ => {
                Err(refused(&client.location, "another store lies there; name a root with nothing below it"))
            }
        }
    }

    /// Creates the partition if it is new, and fences former holders there.
    pub(super) async fn prepare_target(
        &self,
        plan: MovePlan,
        found: TargetPartition,
    ) -> Result<Arc<PartitionMove>, StoreError> {
        let before = self.partitions();
        let MovePlan { scope, from, .. } = plan;
        if !found.is_new {
            let target = before.clusters[found.part].clone();
            let after = before.map.with_move(&scope, found.part, None);
            return Ok(Arc::new(PartitionMove { before, after, from, to: found.part, target }));
        }
        let config = EtcdConfig { address: found.address.clone(), ..self.config.clone() };
        let (client, layout) = (Client::new(&config)?, Layout::for_partition(found.address.root()));
        // The home has token 0, so other partitions need another token.
        let token = match found.token {
            Some(token) => token,
            None => (random_id(&client)?.0 as u64).max(1),
        };
        let identity = key_layout::encode_identity(Identity::Partition { id: self.home.id, token });
        let create = TxnRequest {
            compare: vec![conditional_write::absent_compare(layout.identity_key())],
            success: vec![
                conditional_write::put(layout.identity_key(), identity.clone()),
                conditional_write::put(layout.meta_key(FENCE_KEY), 0_u64.to_be_bytes().to_vec().into()),
            ],
            failure: Vec::new(),
        };
        let store_error = |failure: CallError| failure.into_store_error(&client.location);
        client.txn(RetryPolicy::Repeatable, create).await.map_err(store_error)?;
        let (target, _) = open::take_over(&config, identity, self.home.fence()).await?;
        let part = PartitionEntry { token, address: Some(found.address) };
        let after = before.map.with_move(&scope, found.part, Some(part));
        Ok(Arc::new(PartitionMove { before, after, from, to: found.part, target: Arc::new(target) }))
    }
}
