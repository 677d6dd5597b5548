use std::collections::{BTreeMap, HashMap};

use fairmesh_model::arith::mix64;

use super::{
    Findings, Kind,
    history::{Cell, Expect, History, Key, Outcome, Revision, State, Value},
};

/// State of the registers at every revision, reconstructed from the writes.
pub(super) struct Oracle {
    /// Revision of each write of the history in order; `None` if the write was not applied.
    pub(super) revisions: Vec<Option<Revision>>,
    /// Index of each applied write in the history, by revision.
    pub(super) order: BTreeMap<Revision, usize>,
    /// Values of each key, with the revisions that wrote them.
    versions: BTreeMap<Key, Vec<(Revision, Option<Value>)>>,
    /// Checksum of the state from each revision on; equal checksums mean equal states.
    sums: Vec<(Revision, u64)>,
}

/// Checksum of one cell. Cells combine by XOR: their order does not matter, and a second XOR removes a cell.
pub(super) fn sum_of(key: Key, cell: Cell) -> u64 {
    mix64(mix64(mix64(key) ^ cell.value) ^ cell.revision)
}

pub(super) fn sum(state: &State) -> u64 {
    state.cells.iter().fold(0, |sum, (key, cell)| sum ^ sum_of(*key, *cell))
}

impl Oracle {
    /// Determines the applied writes and the resulting states of the registers.
    pub(super) fn new(history: &History, found: &mut Findings) -> Self {
        let revisions = carried_out(history, found);
        let mut order = BTreeMap::new();
        for (number, revision) in revisions.iter().enumerate() {
            if let Some(revision) = revision
                && let Some(other) = order.insert(*revision, number)
            {
                found.add(
                    Kind::Doubled,
                    format!("writes {other} and {number} have the same revision {revision}"),
                );
            }
        }
        let mut oracle = Self { revisions, order, versions: BTreeMap::new(), sums: Vec::new() };
        oracle.replay(history);
        oracle
    }

    fn replay(&mut self, history: &History) {
        for (key, cell) in &history.start.cells {
            self.versions.insert(*key, vec![(cell.revision, Some(cell.value))]);
        }
        let (mut cells, mut total) = (history.start.cells.clone(), sum(&history.start));
        self.sums.push((0, total));
        for (revision, number) in &self.order {
            for op in &history.writes[*number].ops {
                let cell = op.value.map(|value| Cell { value, revision: *revision });
                let before = match cell {
                    Some(cell) => cells.insert(op.key, cell),
                    None => cells.remove(&op.key),
                };
                for cell in [before, cell].into_iter().flatten() {
                    total ^= sum_of(op.key, cell);
                }
                self.versions.entry(op.key).or_default().push((*revision, op.value));
            }
            self.sums.push((*revision, total));
        }
    }

    /// Checksum of the state at a revision.
    pub(super) fn sum_at(&self, revision: Revision) -> u64 {
        let next = self.sums.partition_point(|(from, _)| *from <= revision);
        self.sums[next - 1].1
    }

    /// Cell of a key at a revision.
    pub(super) fn cell_at(&self, key: Key, revision: Revision) -> Option<Cell> {
        let versions = self.versions.get(&key)?;
        let next = versions.partition_point(|(from, _)| *from <= revision);
        let (revision, value) = versions[..next].last()?;
        value.map(|value| Cell { value, revision: *revision })
    }

    /// Whether an expectation is met at a revision.
    pub(super) fn meets(&self, key: Key, expect: Expect, revision: Revision) -> bool {
        let found = self.cell_at(key, revision);
        match expect {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Revision(expected) => found.is_some_and(|cell| cell.revision == expected),
        }
    }

    /// Revisions in `(after, last]` that wrote a key.
    pub(super) fn writers(
        &self,
        key: Key,
        after: Revision,
        last: Revision,
    ) -> impl Iterator<Item = Revision> {
        let versions = self.versions.get(&key).map_or(&[][..], Vec::as_slice);
        let first = versions.partition_point(|(from, _)| *from <= after);
        versions[first..].iter().map(|(revision, _)| *revision).take_while(move |revision| *revision <= last)
    }

    /// Text that names the first key at which a state differs from the state at revision `at`.
    pub(super) fn difference(&self, state: &State, at: Revision) -> String {
        let keys = self.versions.keys().chain(state.cells.keys());
        let differs = |key: &&Key| self.cell_at(**key, at) != state.cells.get(key).copied();
        match keys.clone().find(differs) {
            Some(key) => format!(
                "key {key} is {:?} at revision {at}, and was {:?}",
                state.cells.get(key),
                self.cell_at(*key, at)
            ),
            None => "nothing differs".into(),
        }
    }
}

/// Revision of each applied write, from its acknowledgement or from an observation of its value.
fn carried_out(history: &History, found: &mut Findings) -> Vec<Option<Revision>> {
    let mut revisions: Vec<_> = history.writes.iter().map(|write| write.outcome.revision()).collect();
    let mut origins: HashMap<Value, (usize, Key)> = HashMap::new();
    for (number, write) in history.writes.iter().enumerate() {
        origins.extend(write.ops.iter().filter_map(|op| Some((op.value?, (number, op.key)))));
    }
    for (who, key, cell) in sightings(history) {
        if history.start.cells.get(&key) == Some(&cell) {
            continue;
        }
        match origins.get(&cell.value) {
            Some((number, at)) if *at == key => match &mut revisions[*number] {
                Some(revision) if *revision == cell.revision => {}
                Some(revision) => found.add(
                    Kind::Doubled,
                    format!(
                        "{who} saw write {number} as revision {} too, not only {revision}",
                        cell.revision
                    ),
                ),
                None if history.writes[*number].outcome == Outcome::Conflict => {
                    found
                        .add(Kind::Phantom, format!("{who} saw write {number}, which was refused: {cell:?}"));
                }
                unknown @ None => *unknown = Some(cell.revision),
            },
            _ => found.add(Kind::Phantom, format!("{who} saw {cell:?} at key {key}, where no write put it")),
        }
    }
    revisions
}

/// Every observed cell, with its observer.
fn sightings(history: &History) -> impl Iterator<Item = (&str, Key, Cell)> {
    let end = [("the end", &history.end)].into_iter();
    let states = end.chain(history.reads.iter().map(|read| ("a read", &read.state)));
    let read = states.flat_map(|(who, state)| state.cells.iter().map(move |(key, cell)| (who, *key, *cell)));
    let watched = history.watches.iter().flat_map(|watch| {
        let puts = watch.steps.iter().flat_map(|step| &step.puts);
        puts.map(|(key, cell)| (watch.name.as_str(), *key, *cell))
    });
    read.chain(watched)
}

impl Outcome {
    fn revision(self) -> Option<Revision> {
        match self {
            Self::Done(revision) => Some(revision),
            Self::Conflict | Self::Unknown => None,
        }
    }
}
