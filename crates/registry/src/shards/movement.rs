//! Carries moves out: reads, asks `step`, acts, and again.

use std::{collections::HashMap, time::Duration};

use fairmesh_model::{
    EndpointState, InstanceId, Prefix, RecordKey, Replica, ReplicaState, ServiceName, ShardMap, ShardMove,
    ShardPart,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::LogLimiter;
use tokio::{task::JoinSet, time::Instant};

use super::{
    AWARE_LABEL, edit, gone,
    moves::stays,
    step::{Action, Facts, step},
};
use crate::{InstanceRef, Registry, RegistryError, view::move_record};

/// How long callers may take to apply a map before the source is taken away from them: they then meet a wrong-shard
/// answer, refresh their map and try elsewhere, which costs them a round trip and nobody a call.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for a change before looking again anyway.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

static HELD_UP: LogLimiter = LogLimiter::new();
static ENDED: LogLimiter = LogLimiter::new();

impl Registry {
    /// Carries every move out that is recorded, for ever; begins with those that an earlier process left.
    pub(crate) async fn carry_moves_out(&self) {
        let mut tasks = JoinSet::new();
        let mut running = HashMap::new();
        self.wanted().extend(self.recorded_moves());
        loop {
            self.wanted().retain(|key| {
                if running.contains_key(key) {
                    // Perhaps just about to end: looked at again when it has.
                    return true;
                }
                let (registry, key) = (self.clone(), key.clone());
                let carried = key.clone();
                let task = tasks.spawn(async move { registry.carry_out(carried).await });
                running.insert(key, task.id());
                false
            });
            tokio::select! {
                Some(done) = tasks.join_next_with_id() => {
                    let id = done.map_or_else(|failed| failed.id(), |(id, ())| id);
                    running.retain(|_, task| *task != id);
                }
                () = self.shared.move_wanted.notified() => {}
            }
        }
    }

    fn recorded_moves(&self) -> Vec<RecordKey> {
        let (_, entries) = self.node().read(&[Prefix::everything()]);
        let moves = entries.iter().filter(|(key, _)| key.contains("/moves/"));
        moves.filter_map(|(key, entry)| move_record(key, entry).map(|(key, ..)| key)).collect()
    }

    async fn carry_out(&self, key: RecordKey) {
        let Some(service) = key.service().cloned() else { return };
        let (mut revisions, mut reports) = (self.node().revisions(), self.shared.reports.subscribe());
        while let Some((wish, _)) = self.move_at(&key) {
            revisions.mark_unchanged();
            reports.mark_unchanged();
            let waits = match self.act(&service, &wish).await {
                Ok(waits) => waits,
                Err(error) => {
                    if let Some(left_out) = HELD_UP.next() {
                        tracing::warn!(%service, shard = %wish.shard, %error, left_out, "a move is held up; trying again");
                    }
                    true
                }
            };
            if waits {
                tokio::select! {
                    _ = revisions.changed() => {}
                    _ = reports.changed() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
        }
    }

    /// Does the next thing; says whether there is nothing more to do for now.
    async fn act(&self, service: &ServiceName, wish: &ShardMove) -> Result<bool, RegistryError> {
        let held = self.shard_map(service)?;
        let action = step(held.as_ref().map(|held| &held.map), wish, self.facts(service, wish));
        match (action, held) {
            (Action::AwaitReady, _) => return Ok(true),
            (Action::Start, _) => {
                // What the target said in an earlier stay does not count for this one.
                if let Some(who) = takes(service, wish)
                    && let Some(ready) = self.readiness().get_mut(&who)
                {
                    ready.remove(&wish.shard);
                }
                self.edit_for(service, wish, action).await?;
            }
            (Action::Finish, Some(held)) => {
                self.await_callers(service, wish, held.revision).await;
                self.edit_for(service, wish, action).await?;
                if let Some(left_out) = ENDED.next() {
                    tracing::info!(%service, %wish, left_out, "moved");
                }
            }
            (Action::Undo(reason), held) => {
                self.outcomes().remember(service, wish, reason);
                match held {
                    Some(_) => self.edit_for(service, wish, action).await?,
                    None => self.end_without_map(service, wish).await?,
                }
                if self.move_at(&RecordKey::Move(service.clone(), wish.shard)).is_some() {
                    // The target came back in the last moment.
                    self.outcomes().forget(service, wish.shard);
                    return Ok(false);
                }
                if let Some(left_out) = ENDED.next() {
                    tracing::warn!(%service, %wish, reason, left_out, "a move is undone");
                }
            }
            _ => self.edit_for(service, wish, action).await?,
        }
        Ok(false)
    }

    fn facts(&self, service: &ServiceName, wish: &ShardMove) -> Facts {
        let Some(target) = self.target(service, wish) else {
            return Facts { target_stays: false, target_ready: false };
        };
        let aware = target.endpoint.labels.get(AWARE_LABEL).is_some_and(|label| label == "aware");
        let reported = takes(service, wish)
            .is_some_and(|who| self.readiness().get(&who).is_some_and(|ready| ready.contains(&wish.shard)));
        // Callers pass over an endpoint that is itself starting.
        let serves = target.endpoint.state == EndpointState::Serving;
        Facts { target_stays: stays(&target), target_ready: serves && (!aware || reported) }
    }

    /// Waits until whoever reads the map has applied that callers go to the target.
    async fn await_callers(&self, service: &ServiceName, wish: &ShardMove, revision: u64) {
        let ranges = Prefix::shards(service, Some(&ShardPart::Ranges));
        let acked = self.node().wait_acked(&ranges, revision, Instant::now() + PATIENCE).await;
        if !acked.all {
            let behind = acked.behind.join(", ");
            if let Some(left_out) = HELD_UP.next() {
                let shard = wish.shard;
                tracing::warn!(%service, %shard, behind, left_out, "callers do not follow; moving on without them");
            }
        }
    }

    /// Changes the map as the action says, unless what it rests on has changed, and ends the move where it says so, all
    /// in one batch.
    async fn edit_for(
        &self,
        service: &ServiceName,
        wish: &ShardMove,
        action: Action,
    ) -> Result<(), RegistryError> {
        let key = RecordKey::Move(service.clone(), wish.shard);
        let change = |held: Option<&crate::view::HeldMap>| {
            let held = held.ok_or_else(gone)?;
            let mut map = held.map.clone();
            let mut ops = Vec::new();
            let Some((recorded, revision)) = self.move_at(&key) else { return Ok((map, ops)) };
            if recorded != *wish || step(Some(&map), wish, self.facts(service, wish)) != action {
                return Ok((map, ops));
            }
            self.apply(service, wish, action, &mut map)?;
            if matches!(action, Action::Finish | Action::Undo(_)) {
                ops.push(Op::delete(key.to_string()).expecting(Expect::Revision(revision)));
            }
            Ok((map, ops))
        };
        self.change_map_with(service, change).await.map(|_| ())
    }

    fn apply(
        &self,
        service: &ServiceName,
        wish: &ShardMove,
        action: Action,
        map: &mut ShardMap,
    ) -> Result<(), RegistryError> {
        let Ok(position) = edit::position(map, wish.shard) else { return Ok(()) };
        let replicas = &mut map.shards[position].replicas;
        let is = |replica: &Replica, instance: &Option<InstanceId>| {
            replica.role == wish.role && instance.as_ref() == Some(&replica.instance)
        };
        match action {
            Action::Start => {
                let target = self.target(service, wish).ok_or_else(gone)?;
                replicas.push(Replica {
                    instance: target.endpoint.instance,
                    region: target.endpoint.location.region,
                    role: wish.role.clone(),
                    state: ReplicaState::Starting,
                });
            }
            Action::Publish => {
                for replica in replicas {
                    if is(replica, &wish.to) {
                        replica.state = ReplicaState::Serving;
                    } else if is(replica, &wish.from) {
                        replica.state = ReplicaState::Stopping;
                    }
                }
            }
            Action::Finish => replicas.retain(|replica| !is(replica, &wish.from)),
            Action::Undo(_) => {
                replicas.retain(|replica| !is(replica, &wish.to) || replica.state != ReplicaState::Starting)
            }
            Action::AwaitReady => {}
        }
        Ok(())
    }

    async fn end_without_map(&self, service: &ServiceName, wish: &ShardMove) -> Result<(), RegistryError> {
        let key = RecordKey::Move(service.clone(), wish.shard);
        let plan = || {
            let recorded = self.move_at(&key).filter(|(recorded, _)| recorded == wish);
            let end = recorded.map(|(_, at)| Op::delete(key.to_string()).expecting(Expect::Revision(at)));
            Ok((end.into_iter().collect(), ()))
        };
        self.change(plan).await.map(|_| ())
    }
}

/// Who is to hold the copy.
fn takes(service: &ServiceName, wish: &ShardMove) -> Option<InstanceRef> {
    let instance = wish.to.clone()?;
    Some(InstanceRef { service: service.clone(), instance })
}
