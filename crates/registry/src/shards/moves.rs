use std::{collections::VecDeque, fmt};

use fairmesh_model::{EndpointState, Record, RecordKey, ReplicaState, ServiceName, ShardId, ShardMove};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::records;

use super::{edit, step};
use crate::{Registry, RegistryError, view::Held};

/// How many moves that were undone are remembered.
const REMEMBERED: usize = 256;

/// A move and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveStatus {
    /// The wish.
    pub wish: ShardMove,
    /// How far it is.
    pub phase: Phase,
}

/// How far a move is. One that is done is listed no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The target loads the shard.
    Starting,
    /// Callers are being told.
    Publishing,
    /// The source is being taken out.
    Stopping,
    /// It was given up, for this reason; remembered until the shard is moved again, or the control plane restarts.
    Undone(&'static str),
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Publishing => f.write_str("publishing"),
            Self::Stopping => f.write_str("stopping"),
            Self::Undone(reason) => write!(f, "undone: {reason}"),
        }
    }
}

/// Moves that were undone of late.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(VecDeque<(ServiceName, ShardMove, &'static str)>);

impl Outcomes {
    pub(super) fn remember(&mut self, service: &ServiceName, wish: &ShardMove, reason: &'static str) {
        self.forget(service, wish.shard);
        self.0.push_back((service.clone(), wish.clone(), reason));
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    pub(super) fn forget(&mut self, service: &ServiceName, shard: ShardId) {
        self.0.retain(|(of, wish, _)| of != service || wish.shard != shard);
    }
}

impl Registry {
    /// The moves of a service that are under way, and those that were undone of late.
    ///
    /// # Errors
    /// `Invalid` when the map cannot be read.
    pub fn list_moves(&self, service: &ServiceName) -> Result<Vec<MoveStatus>, RegistryError> {
        let held = self.shard_map(service)?;
        let under_way = self.moves(service).into_iter().map(|(_, wish, _)| {
            let shards = held.iter().flat_map(|held| &held.map.shards);
            let shard = shards.into_iter().find(|shard| shard.id == wish.shard);
            let state = |instance| shard.and_then(|shard| step::state(shard, &wish, instance));
            let phase = match (state(&wish.from), state(&wish.to)) {
                (Some(_), Some(ReplicaState::Serving)) => Phase::Publishing,
                (None, Some(ReplicaState::Serving)) => Phase::Stopping,
                _ => Phase::Starting,
            };
            MoveStatus { wish, phase }
        });
        let mut moves: Vec<_> = under_way.collect();
        let outcomes = self.outcomes();
        let undone = outcomes.0.iter().filter(|(of, ..)| of == service);
        moves.extend(
            undone.map(|(_, wish, reason)| MoveStatus { wish: wish.clone(), phase: Phase::Undone(reason) }),
        );
        Ok(moves)
    }

    /// What records a wish; nothing when it is recorded already.
    pub(super) fn wish_ops(&self, service: &ServiceName, wish: &ShardMove) -> Result<Vec<Op>, RegistryError> {
        let key = RecordKey::Move(service.clone(), wish.shard);
        match self.move_at(&key) {
            Some((under_way, _)) if under_way == *wish => return Ok(Vec::new()),
            Some((other, _)) => {
                let problem = format!("shard {} moves from {} to {} now", other.shard, other.from, other.to);
                return Err(RegistryError::refused("shard", problem, "wait until that move is done"));
            }
            None => {}
        }
        let held = self.map_of(service)?;
        let shard = &held.map.shards[edit::position(&held.map, wish.shard)?];
        if step::state(shard, wish, &wish.from) != Some(ReplicaState::Serving) {
            let problem = format!("'{}' does not serve shard {} as {}", wish.from, wish.shard, wish.role);
            let holders = shard.replicas.iter().map(|r| format!("{} ({})", r.instance, r.role));
            let hint = format!("name one that does: {}", holders.collect::<Vec<_>>().join(", "));
            return Err(RegistryError::refused("from", problem, &hint));
        }
        if step::state(shard, wish, &wish.to).is_some() {
            let problem = format!("'{}' holds shard {} as {} already", wish.to, wish.shard, wish.role);
            return Err(RegistryError::refused("to", problem, "name an instance that does not hold it"));
        }
        self.check_target(service, wish)?;
        let value = records::encode(&Record::Move(wish.clone()));
        Ok(vec![Op::put(key.to_string(), value).expecting(Expect::Absent)])
    }

    fn check_target(&self, service: &ServiceName, wish: &ShardMove) -> Result<(), RegistryError> {
        let Some(target) = self.target(service, wish) else {
            let problem = format!("'{}' is not registered for {service}", wish.to);
            let hint = "start it first; 'fairmesh get endpoints' lists who is registered";
            return Err(RegistryError::not_found("to", problem, hint));
        };
        if stays(&target) {
            return Ok(());
        }
        let problem = format!("'{}' is {}", wish.to, target.endpoint.state.as_str());
        Err(RegistryError::refused("to", problem, "name an instance that stays"))
    }

    pub(super) fn target(&self, service: &ServiceName, wish: &ShardMove) -> Option<Held> {
        self.endpoint(service, &wish.to)
    }
}

/// Whether an endpoint may be given something to hold.
pub(super) fn stays(held: &Held) -> bool {
    matches!(held.endpoint.state, EndpointState::Starting | EndpointState::Serving)
}
