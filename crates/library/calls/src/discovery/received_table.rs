use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::{Region, RegionTable};
use fairmesh_router::TableInput;
use tokio::time::Instant;

/// A region table, and how old it is.
///
/// Its age is that of the data: the age of the snapshot that brought it, and the time since. The same value that arrives
/// again is not younger, since a planner confirms a table by another value.
#[derive(Debug)]
pub(super) struct ReceivedTable {
    /// The region of the callers.
    pub(in crate::discovery) region: Region,
    table: RegionTable,
    value: Bytes,
    /// Its age at a moment. Not the time of origin, which may lie before the start of the clock.
    age: (Duration, Instant),
}

impl ReceivedTable {
    /// A table that arrived now; its value was this old.
    pub(in crate::discovery) fn new(
        region: &Region,
        table: RegionTable,
        (value, age): (&Bytes, Duration),
    ) -> Self {
        Self { region: region.clone(), table, value: value.clone(), age: (age, Instant::now()) }
    }

    /// Whether it is this value.
    pub(in crate::discovery) fn is(&self, region: &Region, value: &Bytes) -> bool {
        self.region == *region && self.value == *value
    }

    /// The table with its age.
    pub(in crate::discovery) fn at(&self, now: Instant) -> TableInput<'_> {
        let (age, since) = self.age;
        TableInput { table: &self.table, age: age + now.saturating_duration_since(since) }
    }

    /// When it weakens next, so that the service has to be compiled again.
    pub(in crate::discovery) fn weakens(&self) -> Option<Instant> {
        let now = Instant::now();
        let TableInput { table, age } = self.at(now);
        Some(now + table.weakens_at(age)?.saturating_sub(age))
    }
}
