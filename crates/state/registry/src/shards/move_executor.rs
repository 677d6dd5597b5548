//! Executes moves: reads the state, decides the next action, performs it, and repeats.

use std::{collections::HashMap, time::Duration};

use fairmesh_model::{
    EndpointState, InstanceId, Prefix, RecordKey, Replica, ReplicaState, ServiceName, ShardMap, ShardMove,
    ShardPart,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::LogLimiter;
use tokio::{task::JoinSet, time::Instant};

use super::{
    AWARE_LABEL, map_deleted, map_edit,
    move_status::may_hold,
    next_action::{Action, TargetState, next_action},
};
use crate::{InstanceRef, Registry, RegistryError, stored_records::move_record};

/// Time within which callers must apply a map before the source is removed. A late caller gets a wrong-shard
/// response, refreshes its map and retries elsewhere: one extra round trip and no failed call.
pub(super) const CALLER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a change before the state is read again.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

static DELAYED: LogLimiter = LogLimiter::new();
static ENDED: LogLimiter = LogLimiter::new();

impl Registry {
    /// Executes every recorded move, including those of earlier processes; never returns.
    pub(crate) async fn run_moves(&self) {
        let mut tasks = JoinSet::new();
        let mut running = HashMap::new();
        self.pending_moves().extend(self.recorded_moves());
        loop {
            self.pending_moves().retain(|key| {
                if running.contains_key(key) {
                    // The running executor may be about to end; its end triggers another check.
                    return true;
                }
                let (registry, key) = (self.clone(), key.clone());
                let moved = key.clone();
                let task = tasks.spawn(async move { registry.run_move(moved).await });
                running.insert(key, task.id());
                false
            });
            tokio::select! {
                Some(done) = tasks.join_next_with_id() => {
                    let id = done.map_or_else(|failed| failed.id(), |(id, ())| id);
                    running.retain(|_, task| *task != id);
                }
                () = self.shared.move_requested.notified() => {}
            }
        }
    }

    fn recorded_moves(&self) -> Vec<RecordKey> {
        let (_, entries) = self.node().read(&[Prefix::everything()]);
        let moves = entries.iter().filter(|(key, _)| key.contains("/moves/"));
        moves.filter_map(|(key, entry)| move_record(key, entry).map(|(key, ..)| key)).collect()
    }

    async fn run_move(&self, key: RecordKey) {
        let Some(service) = key.service().cloned() else { return };
        let (mut revisions, mut reports) = (self.node().revisions(), self.shared.reports.subscribe());
        while let Some((shard_move, _)) = self.move_at(&key) {
            revisions.mark_unchanged();
            reports.mark_unchanged();
            let is_waiting = match self.advance(&service, &shard_move).await {
                Ok(is_waiting) => is_waiting,
                Err(error) => {
                    if let Some(left_out) = DELAYED.next() {
                        let shard = shard_move.shard;
                        tracing::warn!(%service, %shard, %error, left_out, "a move is delayed; retrying");
                    }
                    true
                }
            };
            if is_waiting {
                tokio::select! {
                    _ = revisions.changed() => {}
                    _ = reports.changed() => {}
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        }
    }

    /// Performs the next action of a move. Returns whether the executor must then wait for a change.
    async fn advance(&self, service: &ServiceName, shard_move: &ShardMove) -> Result<bool, RegistryError> {
        let held = self.shard_map(service)?;
        let action = next_action(
            held.as_ref().map(|held| &held.map),
            shard_move,
            self.target_state(service, shard_move),
        );
        match (action, held) {
            (Action::AwaitReady, _) => return Ok(true),
            (Action::Start, _) => {
                // A report from an earlier process of the target does not count.
                if let Some(target) = target_ref(service, shard_move)
                    && let Some(ready) = self.readiness().get_mut(&target)
                {
                    ready.remove(&shard_move.shard);
                }
                self.edit_for(service, shard_move, action).await?;
            }
            (Action::Finish, Some(held)) => {
                self.await_callers(service, shard_move, held.revision).await;
                self.edit_for(service, shard_move, action).await?;
                if let Some(left_out) = ENDED.next() {
                    tracing::info!(%service, %shard_move, left_out, "moved");
                }
            }
            (Action::Undo(reason), held) => {
                self.undone_moves().remember(service, shard_move, reason);
                match held {
                    Some(_) => self.edit_for(service, shard_move, action).await?,
                    None => self.end_without_map(service, shard_move).await?,
                }
                if self.move_at(&RecordKey::Move(service.clone(), shard_move.shard)).is_some() {
                    // The target has returned meanwhile.
                    self.undone_moves().forget(service, shard_move.shard);
                    return Ok(false);
                }
                if let Some(left_out) = ENDED.next() {
                    tracing::warn!(%service, %shard_move, reason, left_out, "a move was undone");
                }
            }
            _ => self.edit_for(service, shard_move, action).await?,
        }
        Ok(false)
    }

    fn target_state(&self, service: &ServiceName, shard_move: &ShardMove) -> TargetState {
        let Some(target) = self.target(service, shard_move) else {
            return TargetState { target_stays: false, target_ready: false };
        };
        let aware = target.endpoint.labels.get(AWARE_LABEL).is_some_and(|label| label == "aware");
        let reported = target_ref(service, shard_move).is_some_and(|target| {
            self.readiness().get(&target).is_some_and(|ready| ready.contains(&shard_move.shard))
        });
        // Callers skip an endpoint in state starting.
        let serves = target.endpoint.state == EndpointState::Serving;
        TargetState { target_stays: may_hold(&target), target_ready: serves && (!aware || reported) }
    }

    /// Waits until all watchers of the map have applied the map that sends calls to the target.
    async fn await_callers(&self, service: &ServiceName, shard_move: &ShardMove, revision: u64) {
        let ranges = Prefix::shards(service, Some(&ShardPart::Ranges));
        let acked = self.node().wait_acked(&ranges, revision, Instant::now() + CALLER_TIMEOUT).await;
        if !acked.all {
            let behind = acked.behind.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            if let Some(left_out) = DELAYED.next() {
                let shard = shard_move.shard;
                tracing::warn!(%service, %shard, behind, left_out, "callers lag; finishing the move");
            }
        }
    }

    /// Applies an action to the map unless its preconditions have changed. If the action ends the move, the same
    /// batch deletes the move's record.
    async fn edit_for(
        &self,
        service: &ServiceName,
        shard_move: &ShardMove,
        action: Action,
    ) -> Result<(), RegistryError> {
        let key = RecordKey::Move(service.clone(), shard_move.shard);
        let change = |held: Option<&crate::stored_records::StoredShardMap>| {
            let held = held.ok_or_else(map_deleted)?;
            let mut map = held.map.clone();
            let mut ops = Vec::new();
            let Some((recorded, revision)) = self.move_at(&key) else { return Ok((map, ops)) };
            if recorded != *shard_move
                || next_action(Some(&map), shard_move, self.target_state(service, shard_move)) != action
            {
                return Ok((map, ops));
            }
            self.apply(service, shard_move, action, &mut map)?;
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
        shard_move: &ShardMove,
        action: Action,
        map: &mut ShardMap,
    ) -> Result<(), RegistryError> {
        let Ok(position) = map_edit::position(map, shard_move.shard) else { return Ok(()) };
        let replicas = &mut map.shards[position].replicas;
        let is = |replica: &Replica, instance: &Option<InstanceId>| {
            replica.role == shard_move.role && instance.as_ref() == Some(&replica.instance)
        };
        match action {
            Action::Start => {
                let target = self.target(service, shard_move).ok_or_else(map_deleted)?;
                replicas.push(Replica {
                    instance: target.endpoint.instance,
                    region: target.endpoint.location.region,
                    role: shard_move.role.clone(),
                    state: ReplicaState::Starting,
                });
            }
            Action::Publish => {
                for replica in replicas {
                    if is(replica, &shard_move.to) {
                        replica.state = ReplicaState::Serving;
                    } else if is(replica, &shard_move.from) {
                        replica.state = ReplicaState::Stopping;
                    }
                }
            }
            Action::Finish => replicas.retain(|replica| !is(replica, &shard_move.from)),
            Action::Undo(_) => replicas
                .retain(|replica| !is(replica, &shard_move.to) || replica.state != ReplicaState::Starting),
            Action::AwaitReady => {}
        }
        Ok(())
    }

    async fn end_without_map(
        &self,
        service: &ServiceName,
        shard_move: &ShardMove,
    ) -> Result<(), RegistryError> {
        let key = RecordKey::Move(service.clone(), shard_move.shard);
        let plan = || {
            let recorded = self.move_at(&key).filter(|(recorded, _)| recorded == shard_move);
            let end = recorded.map(|(_, at)| Op::delete(key.to_string()).expecting(Expect::Revision(at)));
            Ok((end.into_iter().collect(), ()))
        };
        self.change(plan).await.map(|_| ())
    }
}

/// Returns the instance that receives the copy.
fn target_ref(service: &ServiceName, shard_move: &ShardMove) -> Option<InstanceRef> {
    let instance = shard_move.to.clone()?;
    Some(InstanceRef { service: service.clone(), instance })
}
