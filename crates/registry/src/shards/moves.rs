use std::{collections::VecDeque, fmt};

use fairmesh_model::{
    EndpointState, InstanceId, Record, RecordKey, ReplicaState, ServiceName, Shard, ShardId, ShardMove,
};
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
            MoveStatus { phase: shard.map_or(Phase::Starting, |shard| phase(shard, &wish)), wish }
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
                let problem = format!("another move is under way: {other}");
                return Err(RegistryError::refused("shard", problem, "wait until that move is done"));
            }
            None => {}
        }
        let held = self.map_of(service)?;
        let shard = &held.map.shards[edit::position(&held.map, wish.shard)?];
        if let Some(from) = &wish.from {
            check_source(shard, wish, from)?;
        }
        if let Some(to) = &wish.to {
            self.check_target(service, shard, wish, to)?;
        }
        let value = records::encode(&Record::Move(wish.clone()));
        Ok(vec![Op::put(key.to_string(), value).expecting(Expect::Absent)])
    }

    fn check_target(
        &self,
        service: &ServiceName,
        shard: &Shard,
        wish: &ShardMove,
        to: &InstanceId,
    ) -> Result<(), RegistryError> {
        if step::state(shard, &wish.role, to).is_some() {
            let problem = format!("'{to}' holds shard {} as {} already", wish.shard, wish.role);
            return Err(RegistryError::refused("to", problem, "name an instance that does not hold it"));
        }
        let Some(target) = self.target(service, wish) else {
            let problem = format!("'{to}' is not registered for {service}");
            let hint = "start it first; 'fairmesh get endpoints' lists who is registered";
            return Err(RegistryError::not_found("to", problem, hint));
        };
        if stays(&target) {
            return Ok(());
        }
        let problem = format!("'{to}' is {}", target.endpoint.state.as_str());
        Err(RegistryError::refused("to", problem, "name an instance that stays"))
    }

    pub(super) fn target(&self, service: &ServiceName, wish: &ShardMove) -> Option<Held> {
        self.endpoint(service, wish.to.as_ref()?)
    }
}

/// How far a move is that is under way.
fn phase(shard: &Shard, wish: &ShardMove) -> Phase {
    use ReplicaState::{Serving, Stopping};
    let state = |instance: &InstanceId| step::state(shard, &wish.role, instance);
    match (wish.from.as_ref().map(state), wish.to.as_ref().map(state)) {
        (None, Some(Some(Serving))) | (Some(Some(Stopping)), None) => Phase::Publishing,
        (Some(Some(_)), Some(Some(Serving))) => Phase::Publishing,
        (Some(None), Some(Some(Serving))) => Phase::Stopping,
        _ => Phase::Starting,
    }
}

/// Refuses to take away what is not there, and what nobody else has.
fn check_source(shard: &Shard, wish: &ShardMove, from: &InstanceId) -> Result<(), RegistryError> {
    if step::state(shard, &wish.role, from) != Some(ReplicaState::Serving) {
        let problem = format!("'{from}' does not serve shard {} as {}", wish.shard, wish.role);
        let holders = shard.replicas.iter().map(|r| format!("{} ({})", r.instance, r.role));
        let hint = format!("name one that does: {}", holders.collect::<Vec<_>>().join(", "));
        return Err(RegistryError::refused("from", problem, &hint));
    }
    if wish.to.is_none() && !step::is_served_without(shard, wish) {
        let problem = format!("'{from}' is the only one that serves shard {} as {}", wish.shard, wish.role);
        return Err(RegistryError::refused("from", problem, "move the copy, or add another one first"));
    }
    Ok(())
}

/// Whether an endpoint may be given something to hold.
pub(super) fn stays(held: &Held) -> bool {
    matches!(held.endpoint.state, EndpointState::Starting | EndpointState::Serving)
}
