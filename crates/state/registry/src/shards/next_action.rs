//! The next action of a move: a pure function of the map, the move and the target's state. The map shows the progress
//! of a move, so that any process can continue the move at any point.

use fairmesh_model::{InstanceId, Replica, ReplicaState, Role, Shard, ShardMap, ShardMove};

/// The state of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetState {
    /// Whether the target is registered and neither lost nor draining.
    pub(super) target_stays: bool,
    /// Whether the target serves and has loaded the shard.
    pub(super) target_ready: bool,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Add the target to the map as starting.
    Start,
    /// Wait for the target to load the shard.
    AwaitReady,
    /// Direct calls to the target instead of the source.
    Publish,
    /// Wait until callers have applied the new map, then remove the source and end the move.
    Finish,
    /// Remove the target from the map if present, and end the move with this reason.
    Undo(&'static str),
}

/// Decides the next action.
pub(super) fn next_action(map: Option<&ShardMap>, shard_move: &ShardMove, target: TargetState) -> Action {
    let Some(shard) = map.and_then(|map| map.shards.iter().find(|shard| shard.id == shard_move.shard)) else {
        return Action::Undo("the shard is no longer in the map");
    };
    let source = shard_move.from.as_ref().and_then(|from| state(shard, &shard_move.role, from));
    let Some(to) = &shard_move.to else { return next_drop_action(shard, shard_move, source) };
    match (source, state(shard, &shard_move.role, to)) {
        (None, None) if shard_move.from.is_some() => {
            Action::Undo("neither instance holds the shard any longer")
        }
        // The map with the target is published and callers use it, so the move can only be finished.
        (None | Some(ReplicaState::Stopping), Some(ReplicaState::Serving)) => Action::Finish,
        (Some(_), Some(ReplicaState::Serving)) => Action::Publish,
        (_, Some(ReplicaState::Stopping)) => Action::Undo("another change removes the shard from the target"),
        (_, None | Some(ReplicaState::Starting)) if !target.target_stays => {
            Action::Undo("the target left, was lost or drains before it was ready")
        }
        (_, None) => Action::Start,
        (_, Some(ReplicaState::Starting)) if target.target_ready => Action::Publish,
        (_, Some(ReplicaState::Starting)) => Action::AwaitReady,
    }
}

/// Returns the next action of a move without a target: callers leave the copy, then it is dropped.
fn next_drop_action(shard: &Shard, shard_move: &ShardMove, source: Option<ReplicaState>) -> Action {
    match source {
        None => Action::Undo("another change removed the copy"),
        Some(ReplicaState::Stopping) => Action::Finish,
        Some(_) if !is_served_without(shard, shard_move) => Action::Undo("no other copy in this role serves"),
        Some(_) => Action::Publish,
    }
}

/// Returns the state of an instance's copy in a role.
pub(super) fn state(shard: &Shard, role: &Role, instance: &InstanceId) -> Option<ReplicaState> {
    let holds = |replica: &&Replica| replica.role == *role && replica.instance == *instance;
    shard.replicas.iter().find(holds).map(|replica| replica.state)
}

/// Whether the role is still served without the copy to be dropped.
pub(super) fn is_served_without(shard: &Shard, shard_move: &ShardMove) -> bool {
    let serves = |copy: &Replica| copy.role == shard_move.role && copy.state == ReplicaState::Serving;
    shard.replicas.iter().any(|copy| serves(copy) && Some(&copy.instance) != shard_move.from.as_ref())
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{KeyRange, ShardId, ShardKey};

    use super::*;

    const READY: TargetState = TargetState { target_stays: true, target_ready: true };

    fn shard_move() -> ShardMove {
        ShardMove {
            shard: ShardId(5),
            role: "primary".parse().unwrap(),
            from: Some("x".parse().unwrap()),
            to: Some("y".parse().unwrap()),
        }
    }

    /// A map in which these instances hold shard 5; `y` also holds it in another role.
    fn map(holders: &[(&str, ReplicaState)]) -> ShardMap {
        let replica = |instance: &str, role: &str, state| Replica {
            instance: instance.parse().unwrap(),
            region: "eu".parse().unwrap(),
            role: role.parse().unwrap(),
            state,
        };
        let mut replicas: Vec<_> = holders.iter().map(|(i, state)| replica(i, "primary", *state)).collect();
        replicas.push(replica("y", "secondary", ReplicaState::Serving));
        let shard = Shard { id: ShardId(5), start: ShardKey(0), replicas };
        ShardMap { version: 1, interval: KeyRange::ALL, shards: vec![shard] }
    }

    fn next(holders: &[(&str, ReplicaState)], target: TargetState) -> Action {
        next_action(Some(&map(holders)), &shard_move(), target)
    }

    #[test]
    fn shard_move_adds_target_before_removing_source() {
        use ReplicaState::{Serving, Starting, Stopping};
        let loading = TargetState { target_ready: false, ..READY };
        assert_eq!(next(&[("x", Serving)], loading), Action::Start);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], loading), Action::AwaitReady);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], READY), Action::Publish);
        assert_eq!(next(&[("x", Stopping), ("y", Serving)], READY), Action::Finish);
        assert_eq!(next(&[("y", Serving)], READY), Action::Finish);
        // The source left meanwhile, but the target still gets its copy.
        assert_eq!(next(&[("y", Starting)], READY), Action::Publish);
    }

    #[test]
    fn shard_move_is_undone_when_target_leaves() {
        use ReplicaState::{Serving, Starting, Stopping};
        let gone = TargetState { target_stays: false, target_ready: true };
        for holders in [&[("x", Serving)][..], &[("x", Serving), ("y", Starting)]] {
            assert!(matches!(next(holders, gone), Action::Undo(_)), "{holders:?}");
        }
        assert_eq!(next(&[("x", Stopping), ("y", Serving)], gone), Action::Finish, "callers use it already");
    }

    #[test]
    fn shard_move_without_source_adds_copy() {
        use ReplicaState::{Serving, Starting};
        let add = ShardMove { from: None, ..shard_move() };
        let next = |holders: &[(&str, ReplicaState)], target| next_action(Some(&map(holders)), &add, target);
        let loading = TargetState { target_ready: false, ..READY };
        assert_eq!(next(&[("x", Serving)], loading), Action::Start);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], loading), Action::AwaitReady);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], READY), Action::Publish);
        assert_eq!(next(&[("x", Serving), ("y", Serving)], READY), Action::Finish);
        let gone = TargetState { target_stays: false, target_ready: true };
        assert!(matches!(next(&[("x", Serving), ("y", Starting)], gone), Action::Undo(_)));
    }

    #[test]
    fn shard_copy_is_dropped_after_callers_left_but_never_last_one() {
        use ReplicaState::{Serving, Starting, Stopping};
        let drop = ShardMove { to: None, ..shard_move() };
        let next = |holders: &[(&str, ReplicaState)]| next_action(Some(&map(holders)), &drop, READY);
        assert_eq!(next(&[("x", Serving), ("y", Serving)]), Action::Publish);
        assert_eq!(next(&[("x", Stopping), ("y", Serving)]), Action::Finish);
        for last in [&[("x", Serving)][..], &[("x", Serving), ("y", Starting)], &[("y", Serving)]] {
            assert!(matches!(next(last), Action::Undo(_)), "{last:?}");
        }
    }

    #[test]
    fn shard_map_change_by_other_writer_ends_move() {
        use ReplicaState::{Serving, Stopping};
        assert!(matches!(next_action(None, &shard_move(), READY), Action::Undo(_)));
        assert!(matches!(next(&[("z", Serving)], READY), Action::Undo(_)));
        assert!(matches!(next(&[("x", Serving), ("y", Stopping)], READY), Action::Undo(_)));
        assert_eq!(next(&[("x", Serving), ("y", Serving)], READY), Action::Publish);
    }
}
