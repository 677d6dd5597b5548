//! Shard maps: which replicas hold which keys (ServiceRouter §3.3), changed by compare-and-set, and moved make-before-break (ServiceRouter §4.1).

mod edit;
mod movement;
mod moves;
mod step;
mod write;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use fairmesh_model::{
    Invalid, RecordKey, ServiceKind, ServiceName, ShardId, ShardKey, ShardMap, ShardMove, spec::ShardMapSpec,
};

pub(crate) use moves::Outcomes;
pub use moves::{MoveStatus, Phase};

use crate::{Claim, InstanceRef, Registry, RegistryError, view::HeldMap};

/// An endpoint with this label, set to `aware`, says itself when it has loaded a shard; others count as ready at once.
pub const AWARE_LABEL: &str = "fairmesh.shards";

/// Which shards servers say they have loaded since they were given them.
pub(crate) type Readiness = HashMap<InstanceRef, BTreeSet<ShardId>>;

impl Registry {
    /// The shard map of a service.
    ///
    /// # Errors
    /// `NotFound` when it has none.
    pub fn shards(&self, service: &ServiceName) -> Result<ShardMap, RegistryError> {
        Ok(self.map_of(service)?.map.clone())
    }

    pub(crate) fn map_of(&self, service: &ServiceName) -> Result<Arc<HeldMap>, RegistryError> {
        self.shard_map(service)?.ok_or_else(|| {
            let hint = "create one with 'fairmesh apply -f' and a document of kind ShardMap";
            RegistryError::not_found("service", format!("{service} has no shard map"), hint)
        })
    }

    /// Creates or replaces a map and answers its new version. `map.version` is the version that the caller read; 0
    /// creates. A map that says what is there already changes nothing.
    ///
    /// # Errors
    /// `Invalid` when it has gaps or overlaps, `NotFound` when the service is not declared, `Refused` when it is not
    /// sharded, `Conflict` naming both versions when the map has another one now.
    pub async fn put_shards(&self, service: &ServiceName, map: &ShardMap) -> Result<u64, RegistryError> {
        map.validate()?;
        self.check_sharded(service)?;
        let edit = |held: Option<&HeldMap>| {
            let current = held.map_or(0, |held| held.map.version);
            if let Some(held) = held.filter(|held| same_content(service, &held.map, map)) {
                return Ok(held.map.clone());
            }
            if map.version != current {
                let problem = format!("the map has version {current} and yours rests on {}", map.version);
                let hint = "read the map again and repeat the change on it";
                return Err(RegistryError::Conflict(Invalid::new("version", problem, hint)));
            }
            Ok(map.clone())
        };
        self.change_map(service, edit).await
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
    /// same copies. Answers the new version of the map.
    ///
    /// # Errors
    /// `NotFound` for a shard that is not there, `Invalid` for a key that leaves one half empty, `Refused` while a copy
    /// of it moves.
    pub async fn split_shard(
        &self,
        service: &ServiceName,
        shard: ShardId,
        at: Option<ShardKey>,
    ) -> Result<u64, RegistryError> {
        let change = |map: &mut ShardMap| {
            self.check_still(service, &[shard])?;
            edit::split(map, shard, at)
        };
        self.edit_map(service, change).await
    }

    /// Joins a shard with the next one by key, whose id goes. Answers the new version of the map.
    ///
    /// # Errors
    /// `NotFound` for a shard that is not there, `Refused` when the two are not held alike, or while a copy of one
    /// moves.
    pub async fn merge_shards(&self, service: &ServiceName, shard: ShardId) -> Result<u64, RegistryError> {
        let change = |map: &mut ShardMap| {
            self.check_still(service, &[shard, edit::next(map, shard)?.id])?;
            edit::merge(map, shard)
        };
        self.edit_map(service, change).await
    }

    /// Refuses while a copy of one of these shards moves, or is to.
    fn check_still(&self, service: &ServiceName, shards: &[ShardId]) -> Result<(), RegistryError> {
        let moves = self.moves(service);
        let Some((_, wish, _)) = moves.iter().find(|(_, wish, _)| shards.contains(&wish.shard)) else {
            return Ok(());
        };
        let problem = format!("a move is under way: {wish}");
        Err(RegistryError::refused("shard", problem, "wait until the move is done"))
    }

    async fn edit_map(
        &self,
        service: &ServiceName,
        change: impl Fn(&mut ShardMap) -> Result<(), RegistryError> + Send + Sync,
    ) -> Result<u64, RegistryError> {
        let edit = |held: Option<&HeldMap>| {
            let Some(held) = held else { return Err(self.map_of(service).err().unwrap_or_else(gone)) };
            let mut map = held.map.clone();
            change(&mut map)?;
            Ok(map)
        };
        self.change_map(service, edit).await
    }

    /// A server says which of the shards that are starting on it are loaded, all of them; it repeats that until they
    /// serve, since what it said is kept in memory only.
    ///
    /// # Errors
    /// `NotFound` when it is not registered, or by another process.
    pub fn report_shards(
        &self,
        claim: &Claim,
        ready: impl IntoIterator<Item = ShardId>,
    ) -> Result<(), RegistryError> {
        let who = &claim.instance;
        let held = self.endpoint(&who.service, &who.instance);
        if !held.is_some_and(|held| claim.fits(held.endpoint.incarnation())) {
            let problem = format!("'{}' of {} is not registered", who.instance, who.service);
            return Err(RegistryError::not_found("instance", problem, "register it first"));
        }
        self.readiness().insert(who.clone(), ready.into_iter().collect());
        self.shared.reports.send_replace(());
        Ok(())
    }

    /// Wishes a move, another copy (from nobody) or one copy less (to nobody), and answers at once; it is carried out in the background and survives a restart. Repeating a wish
    /// that is under way is harmless.
    ///
    /// # Errors
    /// `NotFound` when the map, the shard or the target is not there, `Refused` when the copy is not where it is said to
    /// be, is the last one in its role and nobody takes it, the target holds one already or is going away, or another move
    /// of the shard is under way.
    pub async fn move_shard(&self, service: &ServiceName, wish: &ShardMove) -> Result<(), RegistryError> {
        wish.validate()?;
        self.outcomes().forget(service, wish.shard);
        self.change(|| Ok((self.wish_ops(service, wish)?, ()))).await?;
        self.wanted().insert(RecordKey::Move(service.clone(), wish.shard));
        self.shared.move_wanted.notify_one();
        Ok(())
    }
}

/// A map that was there when its edit began is there still: only others' deletion takes it away.
fn gone() -> RegistryError {
    RegistryError::not_found("service", "the map has just been deleted".into(), "create it anew")
}

/// Whether two maps say the same, whatever their versions and the order of copies.
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
