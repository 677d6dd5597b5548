use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::{Region, RegionTable};
use fairmesh_router::TableInput;
use tokio::time::Instant;

/// A region table with its age.
///
/// The age is that of the data: the age of the snapshot that brought the table, plus the time since. Receiving the same
/// value again does not make the table younger, since a planner confirms a table by sending a different value.
#[derive(Debug)]
pub(super) struct ReceivedTable {
    /// Region of the callers.
    pub(in crate::discovery) region: Region,
    table: RegionTable,
    value: Bytes,
    /// Age of the table at an instant. The table's time of origin is not stored, since it may be before the start of
    /// the clock.
    age: (Duration, Instant),
}

impl ReceivedTable {
    /// Creates a table from a value that arrived now with this age.
    pub(in crate::discovery) fn new(
        region: &Region,
        table: RegionTable,
        (value, age): (&Bytes, Duration),
    ) -> Self {
        Self { region: region.clone(), table, value: value.clone(), age: (age, Instant::now()) }
    }

    /// Whether the table has this value.
    pub(in crate::discovery) fn is(&self, region: &Region, value: &Bytes) -> bool {
        self.region == *region && self.value == *value
    }

    /// Returns the table with its age at `now`.
    pub(in crate::discovery) fn at(&self, now: Instant) -> TableInput<'_> {
        let (age, since) = self.age;
        TableInput { table: &self.table, age: age + now.saturating_duration_since(since) }
    }

    /// Time at which the table next loses force and the service must be compiled again.
    pub(in crate::discovery) fn weakens(&self) -> Option<Instant> {
        let now = Instant::now();
        let TableInput { table, age } = self.at(now);
        Some(now + table.weakens_at(age)?.saturating_sub(age))
    }
}
