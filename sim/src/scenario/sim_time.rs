use std::fmt;

use fairmesh_model::spec::{read_duration, write_duration};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A duration or a time of the simulation, in the notation of all documents: `250ms`, `2m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimTime(u64);

impl SimTime {
    /// A number of seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// A number of microseconds.
    pub const fn micros(micros: u64) -> Self {
        Self(micros * 1000)
    }

    /// The time in nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The time in seconds.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&write_duration(std::time::Duration::from_nanos(self.0)))
    }
}

impl Serialize for SimTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SimTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration =
            read_duration(&text).map_err(|e| D::Error::custom(format!("{}; {}", e.problem, e.hint)))?;
        u64::try_from(duration.as_nanos())
            .map(Self)
            .map_err(|_| D::Error::custom(format!("'{text}' is too long; write at most some years")))
    }
}
