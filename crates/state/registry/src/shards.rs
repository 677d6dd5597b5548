//! Shard maps: the replicas of each key range (ServiceRouter §3.3). They are changed by compare-and-set, and shards
//! are moved make-before-break (ServiceRouter §4.1).

mod map_deletion;
mod map_edit;
mod map_writer;
mod move_executor;
mod move_status;
mod next_action;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use fairmesh_model::{
    Invalid, RecordKey, ServiceKind, ServiceName, ShardId, ShardKey, ShardMap, ShardMove, spec::ShardMapSpec,
};

pub(crate) use move_status::UndoneMoves;
pub use move_status::{MoveStatus, Phase};

use crate::{InstanceClaim, InstanceRef, Registry, RegistryError, stored_records::StoredShardMap};

/// Label whose value `aware` marks endpoints that report their loaded shards. Other endpoints count as ready at once.
pub const AWARE_LABEL: &str = "fairmesh.shards";

/// Loaded shards as reported by each server.
pub(crate) type Readiness = HashMap<InstanceRef, BTreeSet<ShardId>>;

impl Registry {
    /// Returns the shard map of a service.
    ///
    /// # Errors
    /// `NotFound` when the service has no shard map.
    pub fn shards(&self, service: &ServiceName) -> Result<ShardMap, RegistryError> {
        Ok(self.map_of(service)?.map.clone())
    }

    pub(crate) fn map_of(&self, service: &ServiceName) -> Result<Arc<StoredShardMap>, RegistryError> {
        self.shard_map(service)?.ok_or_else(|| {
            let hint = "create one with 'fairmesh apply -f' and a document of kind ShardMap";
            RegistryError::not_found("service", format!("{service} has no shard map"), hint)
        })
    }

    /// Creates or replaces a map and returns its new version. `map.version` is the version that the caller read; 0
    /// creates a map. Writing an equal map changes nothing. A stored map that cannot be read is replaced.
    ///
    /// # Errors
    /// `Invalid` for gaps or overlaps, `NotFound` when the service is not declared, `Refused` when it is not sharded,
    /// `Conflict` with both versions when the present version differs.
    pub async fn put_shards(&self, service: &ServiceName, map: &ShardMap) -> Result<u64, RegistryError> {
        map.validate()?;
        self.check_sharded(service)?;
        let edit = |held: Option<&StoredShardMap>| {
            let current = held.map_or(0, |held| held.map.version);
            if let Some(held) = held.filter(|held| same_content(service, &held.map, map)) {
                return Ok(held.map.clone());
            }
            if map.version != current && !held.is_some_and(StoredShardMap::is_unreadable) {
                let problem = format!("the map has version {current} and yours rests on {}", map.version);
                let hint = "read the map again and repeat the change on it";
                return Err(RegistryError::Conflict(Invalid::new("version", problem, hint)));
            }
            Ok(map.clone())
        };
        self.replace_map(service, edit).await
    }

    fn check_sharded(&self, service: &ServiceName) -> Result<(), RegistryError> {
        let hint = "declare it first: a document of kind Service with 'type: sharded'";
        match self.service(service)?.map(|service| service.kind) {
            Some(ServiceKind::Sharded) => Ok(()),
            Some(_) => Err(RegistryError::refused("service", format!("{service} is not sharded"), hint)),
            None => Err(RegistryError::not_found("service", format!("{service} is not declared"), hint)),
        }
    }

    /// Splits a shard at `at`, the first key of the upper half, or in the middle. The upper half gets a new id and the
    /// same copies. Returns the new version of the map.
    ///
    /// # Errors
    /// `NotFound` for an unknown shard, `Invalid` for a key that leaves one half empty, `Refused` while a move of the
    /// shard is in flight.
    pub async fn split_shard(
        &self,
        service: &ServiceName,
        shard: ShardId,
        at: Option<ShardKey>,
    ) -> Result<u64, RegistryError> {
        let change = |map: &mut ShardMap| {
            self.check_not_moving(service, &[shard])?;
            map_edit::split(map, shard, at)
        };
        self.edit_map(service, change).await
    }

    /// Merges the next shard by key into this one and drops its id. Returns the new version of the map.
    ///
    /// # Errors
    /// `NotFound` for an unknown shard, `Refused` when the two shards have different copies or a move of either is in
    /// flight.
    pub async fn merge_shards(&self, service: &ServiceName, shard: ShardId) -> Result<u64, RegistryError> {
        let change = |map: &mut ShardMap| {
            self.check_not_moving(service, &[shard, map_edit::next(map, shard)?.id])?;
            map_edit::merge(map, shard)
        };
        self.edit_map(service, change).await
    }

    /// Refuses if a move of any of these shards is recorded.
    fn check_not_moving(&self, service: &ServiceName, shards: &[ShardId]) -> Result<(), RegistryError> {
        let moves = self.moves(service);
        let Some((_, shard_move, _)) =
            moves.iter().find(|(_, shard_move, _)| shards.contains(&shard_move.shard))
        else {
            return Ok(());
        };
        let problem = format!("a move is in flight: {shard_move}");
        Err(RegistryError::refused("shard", problem, "wait until the move is done"))
    }

    async fn edit_map(
        &self,
        service: &ServiceName,
        change: impl Fn(&mut ShardMap) -> Result<(), RegistryError> + Send + Sync,
    ) -> Result<u64, RegistryError> {
        let edit = |held: Option<&StoredShardMap>| {
            let Some(held) = held else { return Err(self.map_of(service).err().unwrap_or_else(map_deleted)) };
            let mut map = held.map.clone();
            change(&mut map)?;
            Ok(map)
        };
        self.change_map(service, edit).await
    }

    /// Records which shards that are starting on a server have been loaded there. Reports are kept in memory only, so
    /// the server repeats them until the shards serve.
    ///
    /// # Errors
    /// `NotFound` when the server is not registered, or is registered by another process.
    pub fn report_shards(
        &self,
        claim: &InstanceClaim,
        ready: impl IntoIterator<Item = ShardId>,
    ) -> Result<(), RegistryError> {
        let instance = &claim.instance;
        let held = self.endpoint(&instance.service, &instance.instance);
        if !held.is_some_and(|held| claim.matches(held.endpoint.incarnation())) {
            let problem = format!("'{}' of {} is not registered", instance.instance, instance.service);
            return Err(RegistryError::not_found("instance", problem, "register it first"));
        }
        self.readiness().insert(instance.clone(), ready.into_iter().collect());
        self.shared.reports.send_replace(());
        Ok(())
    }

    /// Requests a move, an added copy (without source) or a dropped copy (without target), and returns at once. The
    /// move is executed in the background and survives a restart. Repeating a request is harmless.
    ///
    /// # Errors
    /// `NotFound` when the map, the shard or the target does not exist. `Refused` when the source does not hold the
    /// copy, when the source holds the last copy in its role and there is no target, when the target already holds a
    /// copy or is leaving, or when another move of the shard is in flight.
    pub async fn move_shard(
        &self,
        service: &ServiceName,
        shard_move: &ShardMove,
    ) -> Result<(), RegistryError> {
        shard_move.validate()?;
        self.undone_moves().forget(service, shard_move.shard);
        self.change(|| Ok((self.move_ops(service, shard_move)?, ()))).await?;
        self.pending_moves().insert(RecordKey::Move(service.clone(), shard_move.shard));
        self.shared.move_requested.notify_one();
        Ok(())
    }
}

/// Returns the error for a map that another writer deleted during an edit.
fn map_deleted() -> RegistryError {
    RegistryError::not_found("service", "the map has just been deleted".into(), "create it again")
}

/// Whether two maps are equal apart from versions and the order of copies.
fn same_content(service: &ServiceName, a: &ShardMap, b: &ShardMap) -> bool {
    let content = |map: &ShardMap| {
        let mut spec = ShardMapSpec::of(service, map);
        for shard in &mut spec.shards {
            shard.replicas.sort_by(|a, b| (&a.instance, &a.role).cmp(&(&b.instance, &b.role)));
        }
        spec
    };
    content(a) == content(b)
}

#[cfg(test)]
mod tests;
