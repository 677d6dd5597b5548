use serde::{Deserialize, Serialize};

use super::value_text::{KeyText, read};
use crate::{Invalid, KeyRange, Replica, ReplicaState, ServiceName, Shard, ShardId, ShardKey, ShardMap};

/// The assignment of keys of a service to replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShardMapSpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// The version that the writer read, for a compare-and-set. If left out, any version is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The keys that the map covers; all keys by default.
    #[serde(default, skip_serializing_if = "IntervalSpec::is_all")]
    pub interval: IntervalSpec,
    /// The shards in ascending order of their start. Each ends where the next one starts.
    pub shards: Vec<ShardSpec>,
}

/// An interval of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntervalSpec {
    /// The first key; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<KeyText>,
    /// The exclusive end, or `max` for 2^128, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<KeyText>,
}

/// One range of keys and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShardSpec {
    /// The shard's id.
    pub id: u32,
    /// The shard's first key.
    pub start: KeyText,
    /// The shard's copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaSpec>,
}

/// One copy of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaSpec {
    /// The endpoint that holds the copy.
    pub instance: String,
    /// The endpoint's region.
    pub region: String,
    /// The role of the copy. Roles are opaque.
    pub role: String,
    /// The state of the copy: `serving` (default), `starting` or `stopping`.
    #[serde(default, skip_serializing_if = "is_serving")]
    pub state: ReplicaState,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_serving(state: &ReplicaState) -> bool {
    *state == ReplicaState::Serving
}

impl ShardMapSpec {
    /// Validates the map. The version is 0 if the document has none.
    pub fn validate(&self) -> Result<(ServiceName, ShardMap), Invalid> {
        let service = read("service", &self.service)?;
        let interval = self.interval.validate().map_err(|e| e.within("interval"))?;
        let shards = self.shards.iter().enumerate();
        let shards = shards.map(|(i, spec)| spec.validate().map_err(|e| e.within(format!("shards[{i}]"))));
        let map = ShardMap {
            version: self.version.unwrap_or_default(),
            interval,
            shards: shards.collect::<Result<_, _>>()?,
        };
        map.validate()?;
        Ok((service, map))
    }

    /// The inverse of [`validate`](Self::validate), without the version: the store sets it, not the writer.
    pub fn of(service: &ServiceName, map: &ShardMap) -> Self {
        Self {
            service: service.to_string(),
            version: None,
            interval: IntervalSpec::of(map.interval),
            shards: map.shards.iter().map(ShardSpec::of).collect(),
        }
    }
}

impl IntervalSpec {
    fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Validates the interval.
    pub fn validate(&self) -> Result<KeyRange, Invalid> {
        let start = self.start.as_ref().map_or(Ok(ShardKey(0)), |key| read("start", &key.0))?;
        let end =
            self.end.as_ref().filter(|end| end.0 != "max").map(|key| read("end", &key.0)).transpose()?;
        KeyRange::new(start, end)
    }

    fn of(range: KeyRange) -> Self {
        Self {
            start: Some(range.first).filter(|first| first.0 > 0).map(|first| first.0.into()),
            end: range.last.0.checked_add(1).map(KeyText::from),
        }
    }
}

impl ShardSpec {
    fn validate(&self) -> Result<Shard, Invalid> {
        let replicas = self.replicas.iter().enumerate();
        let replicas =
            replicas.map(|(i, spec)| spec.validate().map_err(|e| e.within(format!("replicas[{i}]"))));
        Ok(Shard {
            id: ShardId(self.id),
            start: read("start", &self.start.0)?,
            replicas: replicas.collect::<Result<_, _>>()?,
        })
    }

    fn of(shard: &Shard) -> Self {
        let replicas = shard.replicas.iter().map(|replica| ReplicaSpec {
            instance: replica.instance.to_string(),
            region: replica.region.to_string(),
            role: replica.role.to_string(),
            state: replica.state,
        });
        Self { id: shard.id.0, start: shard.start.0.into(), replicas: replicas.collect() }
    }
}

impl ReplicaSpec {
    fn validate(&self) -> Result<Replica, Invalid> {
        Ok(Replica {
            instance: read("instance", &self.instance)?,
            region: read("region", &self.region)?,
            role: read("role", &self.role)?,
            state: self.state,
        })
    }
}
