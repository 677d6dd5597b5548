use std::{collections::VecDeque, fmt};

use fairmesh_model::{
    EndpointState, InstanceId, Record, RecordKey, ReplicaState, ServiceName, Shard, ShardId, ShardMove,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::record_encoding;

use super::{map_edit, next_action};
use crate::{Registry, RegistryError, stored_records::StoredEndpoint};

/// Maximum number of undone moves that are remembered.
const MAX_REMEMBERED: usize = 256;

/// A move and its phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveStatus {
    /// The move.
    pub shard_move: ShardMove,
    /// Current phase of the move.
    pub phase: Phase,
}

/// The phase of a move. Finished moves are not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The target loads the shard.
    Starting,
    /// Callers apply the new map.
    Publishing,
    /// The source is removed.
    Stopping,
    /// The move was undone for this reason. Remembered until the shard is moved again or the control plane restarts.
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

/// Recently undone moves.
#[derive(Debug, Default)]
pub(crate) struct UndoneMoves(VecDeque<(ServiceName, ShardMove, &'static str)>);

impl UndoneMoves {
    pub(super) fn remember(&mut self, service: &ServiceName, shard_move: &ShardMove, reason: &'static str) {
        self.forget(service, shard_move.shard);
        self.0.push_back((service.clone(), shard_move.clone(), reason));
        if self.0.len() > MAX_REMEMBERED {
            self.0.pop_front();
        }
    }

    pub(super) fn forget(&mut self, service: &ServiceName, shard: ShardId) {
        self.0.retain(|(of, shard_move, _)| of != service || shard_move.shard != shard);
    }
}

impl Registry {
    /// Returns a service's moves in flight, and its recently undone moves.
    ///
    /// # Errors
    /// `Invalid` when the map cannot be decoded.
    pub fn list_moves(&self, service: &ServiceName) -> Result<Vec<MoveStatus>, RegistryError> {
        let held = self.shard_map(service)?;
        let in_flight = self.moves(service).into_iter().map(|(_, shard_move, _)| {
            let shards = held.iter().flat_map(|held| &held.map.shards);
            let shard = shards.into_iter().find(|shard| shard.id == shard_move.shard);
            MoveStatus { phase: shard.map_or(Phase::Starting, |shard| phase(shard, &shard_move)), shard_move }
        });
        let mut moves: Vec<_> = in_flight.collect();
        let undone_moves = self.undone_moves();
        let undone = undone_moves.0.iter().filter(|(of, ..)| of == service);
        moves.extend(undone.map(|(_, shard_move, reason)| MoveStatus {
            shard_move: shard_move.clone(),
            phase: Phase::Undone(reason),
        }));
        Ok(moves)
    }

    /// Returns the write that records a move, or nothing if the move is recorded already.
    pub(super) fn move_ops(
        &self,
        service: &ServiceName,
        shard_move: &ShardMove,
    ) -> Result<Vec<Op>, RegistryError> {
        let key = RecordKey::Move(service.clone(), shard_move.shard);
        match self.move_at(&key) {
            Some((in_flight, _)) if in_flight == *shard_move => return Ok(Vec::new()),
            Some((other, _)) => {
                let problem = format!("another move is in flight: {other}");
                return Err(RegistryError::refused("shard", problem, "wait until that move is done"));
            }
            None => {}
        }
        let held = self.map_of(service)?;
        let shard = &held.map.shards[map_edit::position(&held.map, shard_move.shard)?];
        if let Some(from) = &shard_move.from {
            check_source(shard, shard_move, from)?;
        }
        if let Some(to) = &shard_move.to {
            self.check_target(service, shard, shard_move, to)?;
        }
        let value = record_encoding::encode(&Record::Move(shard_move.clone()));
        Ok(vec![Op::put(key.to_string(), value).expecting(Expect::Absent)])
    }

    fn check_target(
        &self,
        service: &ServiceName,
        shard: &Shard,
        shard_move: &ShardMove,
        to: &InstanceId,
    ) -> Result<(), RegistryError> {
        if next_action::state(shard, &shard_move.role, to).is_some() {
            let problem = format!("'{to}' holds shard {} as {} already", shard_move.shard, shard_move.role);
            return Err(RegistryError::refused("to", problem, "name an instance that does not hold it"));
        }
        let Some(target) = self.target(service, shard_move) else {
            let problem = format!("'{to}' is not registered for {service}");
            let hint = "start it first; 'fairmesh get endpoints' lists the registered instances";
            return Err(RegistryError::not_found("to", problem, hint));
        };
        if may_hold(&target) {
            return Ok(());
        }
        let problem = format!("'{to}' is {}", target.endpoint.state.as_str());
        Err(RegistryError::refused("to", problem, "name an instance that is starting or serving"))
    }

    pub(super) fn target(&self, service: &ServiceName, shard_move: &ShardMove) -> Option<StoredEndpoint> {
        self.endpoint(service, shard_move.to.as_ref()?)
    }
}

/// Returns the phase of a move in flight.
fn phase(shard: &Shard, shard_move: &ShardMove) -> Phase {
    use ReplicaState::{Serving, Stopping};
    let state = |instance: &InstanceId| next_action::state(shard, &shard_move.role, instance);
    match (shard_move.from.as_ref().map(state), shard_move.to.as_ref().map(state)) {
        (None, Some(Some(Serving))) | (Some(Some(Stopping)), None) => Phase::Publishing,
        (Some(Some(_)), Some(Some(Serving))) => Phase::Publishing,
        (Some(None), Some(Some(Serving))) => Phase::Stopping,
        _ => Phase::Starting,
    }
}

/// Refuses a source that does not hold the copy, and removal of the last copy.
fn check_source(shard: &Shard, shard_move: &ShardMove, from: &InstanceId) -> Result<(), RegistryError> {
    if next_action::state(shard, &shard_move.role, from) != Some(ReplicaState::Serving) {
        let problem = format!("'{from}' does not serve shard {} as {}", shard_move.shard, shard_move.role);
        let holders = shard.replicas.iter().map(|r| format!("{} ({})", r.instance, r.role));
        let hint = format!("name one that does: {}", holders.collect::<Vec<_>>().join(", "));
        return Err(RegistryError::refused("from", problem, &hint));
    }
    if shard_move.to.is_none() && !next_action::is_served_without(shard, shard_move) {
        let problem =
            format!("'{from}' is the only one that serves shard {} as {}", shard_move.shard, shard_move.role);
        return Err(RegistryError::refused("from", problem, "move the copy, or add another one first"));
    }
    Ok(())
}

/// Whether an endpoint may receive copies.
pub(super) fn may_hold(held: &StoredEndpoint) -> bool {
    matches!(held.endpoint.state, EndpointState::Starting | EndpointState::Serving)
}
