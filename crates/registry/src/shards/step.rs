//! What to do next for a move: a pure function of the map, the wish and what is known of the two endpoints. The map
//! itself says how far a move has come, so that any process can take it up at any point.

use fairmesh_model::{InstanceId, Replica, ReplicaState, Role, Shard, ShardMap, ShardMove};

/// What is known of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether it is registered and neither lost nor draining.
    pub(super) target_stays: bool,
    /// Whether it serves and has loaded the shard.
    pub(super) target_ready: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Add the target to the map as starting.
    Start,
    /// Wait for the target to load the shard.
    AwaitReady,
    /// Send callers to the target and away from the source.
    Publish,
    /// Wait until callers have applied that, then take the source out of the map and end the move.
    Finish,
    /// Take the target out again, if it is in the map, and end the move, for this reason.
    Undo(&'static str),
}

/// Decides.
pub(super) fn step(map: Option<&ShardMap>, wish: &ShardMove, facts: Facts) -> Action {
    let Some(shard) = map.and_then(|map| map.shards.iter().find(|shard| shard.id == wish.shard)) else {
        return Action::Undo("the shard is not in the map any more");
    };
    let source = wish.from.as_ref().and_then(|from| state(shard, &wish.role, from));
    let Some(to) = &wish.to else { return drop_step(shard, wish, source) };
    match (source, state(shard, &wish.role, to)) {
        (None, None) if wish.from.is_some() => Action::Undo("neither instance holds the shard any more"),
        // Published: from here on the way is forward only, since callers use the target.
        (None | Some(ReplicaState::Stopping), Some(ReplicaState::Serving)) => Action::Finish,
        (Some(_), Some(ReplicaState::Serving)) => Action::Publish,
        (_, Some(ReplicaState::Stopping)) => {
            Action::Undo("somebody else takes the shard away from the target")
        }
        (_, None | Some(ReplicaState::Starting)) if !facts.target_stays => {
            Action::Undo("the target left, was lost or drains before it was ready")
        }
        (_, None) => Action::Start,
        (_, Some(ReplicaState::Starting)) if facts.target_ready => Action::Publish,
        (_, Some(ReplicaState::Starting)) => Action::AwaitReady,
    }
}

/// The same where nobody takes the copy: callers leave it, and then it goes.
fn drop_step(shard: &Shard, wish: &ShardMove, source: Option<ReplicaState>) -> Action {
    match source {
        None => Action::Undo("somebody else took the copy away"),
        Some(ReplicaState::Stopping) => Action::Finish,
        Some(_) if !is_served_without(shard, wish) => {
            Action::Undo("no other copy in this role serves any more")
        }
        Some(_) => Action::Publish,
    }
}

/// In which state an instance holds the copy of a role.
pub(super) fn state(shard: &Shard, role: &Role, instance: &InstanceId) -> Option<ReplicaState> {
    let holds = |replica: &&Replica| replica.role == *role && replica.instance == *instance;
    shard.replicas.iter().find(holds).map(|replica| replica.state)
}

/// Whether another copy serves in the role of the one that is given up.
pub(super) fn is_served_without(shard: &Shard, wish: &ShardMove) -> bool {
    let serves = |copy: &Replica| copy.role == wish.role && copy.state == ReplicaState::Serving;
    shard.replicas.iter().any(|copy| serves(copy) && Some(&copy.instance) != wish.from.as_ref())
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{KeyRange, ShardId, ShardKey};

    use super::*;

    const READY: Facts = Facts { target_stays: true, target_ready: true };

    fn wish() -> ShardMove {
        ShardMove {
            shard: ShardId(5),
            role: "primary".parse().unwrap(),
            from: Some("x".parse().unwrap()),
            to: Some("y".parse().unwrap()),
        }
    }

    /// A map in which shard 5 is held by these, and `y` holds another role besides.
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

    fn next(holders: &[(&str, ReplicaState)], facts: Facts) -> Action {
        step(Some(&map(holders)), &wish(), facts)
    }

    #[test]
    fn a_move_makes_before_it_breaks() {
        use ReplicaState::{Serving, Starting, Stopping};
        let loading = Facts { target_ready: false, ..READY };
        assert_eq!(next(&[("x", Serving)], loading), Action::Start);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], loading), Action::AwaitReady);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], READY), Action::Publish);
        assert_eq!(next(&[("x", Stopping), ("y", Serving)], READY), Action::Finish);
        assert_eq!(next(&[("y", Serving)], READY), Action::Finish);
        // The source left by itself meanwhile: the copy is still wanted at the target.
        assert_eq!(next(&[("y", Starting)], READY), Action::Publish);
    }

    #[test]
    fn a_target_that_goes_before_it_serves_undoes_the_move() {
        use ReplicaState::{Serving, Starting, Stopping};
        let gone = Facts { target_stays: false, target_ready: true };
        for holders in [&[("x", Serving)][..], &[("x", Serving), ("y", Starting)]] {
            assert!(matches!(next(holders, gone), Action::Undo(_)), "{holders:?}");
        }
        assert_eq!(next(&[("x", Stopping), ("y", Serving)], gone), Action::Finish, "callers use it already");
    }

    #[test]
    fn a_copy_is_added_as_a_move_from_nobody() {
        use ReplicaState::{Serving, Starting};
        let add = ShardMove { from: None, ..wish() };
        let next = |holders: &[(&str, ReplicaState)], facts| step(Some(&map(holders)), &add, facts);
        let loading = Facts { target_ready: false, ..READY };
        assert_eq!(next(&[("x", Serving)], loading), Action::Start);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], loading), Action::AwaitReady);
        assert_eq!(next(&[("x", Serving), ("y", Starting)], READY), Action::Publish);
        assert_eq!(next(&[("x", Serving), ("y", Serving)], READY), Action::Finish);
        let gone = Facts { target_stays: false, target_ready: true };
        assert!(matches!(next(&[("x", Serving), ("y", Starting)], gone), Action::Undo(_)));
    }

    #[test]
    fn a_copy_is_dropped_once_callers_have_left_and_never_the_last_one() {
        use ReplicaState::{Serving, Starting, Stopping};
        let drop = ShardMove { to: None, ..wish() };
        let next = |holders: &[(&str, ReplicaState)]| step(Some(&map(holders)), &drop, READY);
        assert_eq!(next(&[("x", Serving), ("y", Serving)]), Action::Publish);
        assert_eq!(next(&[("x", Stopping), ("y", Serving)]), Action::Finish);
        for last in [&[("x", Serving)][..], &[("x", Serving), ("y", Starting)], &[("y", Serving)]] {
            assert!(matches!(next(last), Action::Undo(_)), "{last:?}");
        }
    }

    #[test]
    fn a_map_that_others_changed_ends_the_move() {
        use ReplicaState::{Serving, Stopping};
        assert!(matches!(step(None, &wish(), READY), Action::Undo(_)));
        assert!(matches!(next(&[("z", Serving)], READY), Action::Undo(_)));
        assert!(matches!(next(&[("x", Serving), ("y", Stopping)], READY), Action::Undo(_)));
        assert_eq!(next(&[("x", Serving), ("y", Serving)], READY), Action::Publish);
    }
}
