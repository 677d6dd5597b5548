//! Shard maps and moves of shards: messages of `records.proto` and `registry.proto`.

use fairmesh_model::{
    InstanceId, Invalid, KeyRange, Replica, ReplicaState, Shard, ShardId, ShardMap, ShardMove,
};

use super::{read_enum, shard_key, shard_key_bytes};
use crate::v1;

impl From<ReplicaState> for v1::ReplicaState {
    fn from(state: ReplicaState) -> Self {
        match state {
            ReplicaState::Starting => Self::ReplicaStarting,
            ReplicaState::Serving => Self::ReplicaServing,
            ReplicaState::Stopping => Self::ReplicaStopping,
        }
    }
}

impl From<v1::ReplicaState> for ReplicaState {
    fn from(state: v1::ReplicaState) -> Self {
        match state {
            v1::ReplicaState::ReplicaStarting => Self::Starting,
            v1::ReplicaState::Unspecified | v1::ReplicaState::ReplicaServing => Self::Serving,
            v1::ReplicaState::ReplicaStopping => Self::Stopping,
        }
    }
}

impl From<Replica> for v1::Replica {
    fn from(replica: Replica) -> Self {
        let Replica { instance, region, role, state } = replica;
        Self {
            instance: instance.into(),
            region: region.into(),
            role: role.into(),
            state: v1::ReplicaState::from(state).into(),
        }
    }
}

impl TryFrom<v1::Replica> for Replica {
    type Error = Invalid;

    fn try_from(message: v1::Replica) -> Result<Self, Invalid> {
        let state: v1::ReplicaState = read_enum("state", message.state)?;
        Ok(Self {
            instance: message.instance.try_into().map_err(|e: Invalid| e.within("instance"))?,
            region: message.region.try_into().map_err(|e: Invalid| e.within("region"))?,
            role: message.role.try_into().map_err(|e: Invalid| e.within("role"))?,
            state: state.into(),
        })
    }
}

impl From<Shard> for v1::Shard {
    fn from(shard: Shard) -> Self {
        Self {
            id: shard.id.0,
            start: shard_key_bytes(shard.start),
            replicas: shard.replicas.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Shard> for Shard {
    type Error = Invalid;

    fn try_from(message: v1::Shard) -> Result<Self, Invalid> {
        let replica = |(i, replica): (usize, v1::Replica)| {
            Replica::try_from(replica).map_err(|e| e.within(format!("replicas[{i}]")))
        };
        Ok(Self {
            id: ShardId(message.id),
            start: shard_key(&message.start).map_err(|e| e.within("start"))?,
            replicas: message.replicas.into_iter().enumerate().map(replica).collect::<Result<_, _>>()?,
        })
    }
}

/// Parses a key range from its first and last key, each 16 bytes, big endian.
///
/// # Errors
/// [`Invalid`] if either is not a key, or if the last key is below the first.
pub fn interval(first: &[u8], last: &[u8]) -> Result<KeyRange, Invalid> {
    let first = shard_key(first).map_err(|e| e.within("first_key"))?;
    let last = shard_key(last).map_err(|e| e.within("last_key"))?;
    if first > last {
        let problem = format!("{last} is below first_key, {first}");
        return Err(Invalid::new("last_key", problem, "send a last key that is not below the first"));
    }
    Ok(KeyRange { first, last })
}

impl From<ShardMap> for v1::ShardMap {
    fn from(map: ShardMap) -> Self {
        Self {
            version: map.version,
            first_key: shard_key_bytes(map.interval.first),
            last_key: shard_key_bytes(map.interval.last),
            shards: map.shards.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::ShardMap> for ShardMap {
    type Error = Invalid;

    fn try_from(message: v1::ShardMap) -> Result<Self, Invalid> {
        let shard = |(i, shard): (usize, v1::Shard)| {
            Shard::try_from(shard).map_err(|e| e.within(format!("shards[{i}]")))
        };
        let map = Self {
            version: message.version,
            interval: interval(&message.first_key, &message.last_key)?,
            shards: message.shards.into_iter().enumerate().map(shard).collect::<Result<_, _>>()?,
        };
        map.validate()?;
        Ok(map)
    }
}

impl From<ShardMove> for v1::ShardMove {
    fn from(wish: ShardMove) -> Self {
        let ShardMove { shard, role, from, to } = wish;
        let text = |instance: Option<InstanceId>| instance.map(Into::into).unwrap_or_default();
        Self { shard: shard.0, role: role.into(), from: text(from), to: text(to) }
    }
}

impl TryFrom<v1::ShardMove> for ShardMove {
    type Error = Invalid;

    fn try_from(message: v1::ShardMove) -> Result<Self, Invalid> {
        let named = |instance: String| (!instance.is_empty()).then(|| instance.try_into()).transpose();
        let wish = Self {
            shard: ShardId(message.shard),
            role: message.role.try_into().map_err(|e: Invalid| e.within("role"))?,
            from: named(message.from).map_err(|e: Invalid| e.within("from"))?,
            to: named(message.to).map_err(|e: Invalid| e.within("to"))?,
        };
        wish.validate()?;
        Ok(wish)
    }
}
