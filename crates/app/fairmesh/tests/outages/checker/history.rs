use std::collections::BTreeMap;

/// A register: a key of the routing information base, as a number.
pub(crate) type Key = u64;
/// A value unique to its write, so that each observation identifies the write.
pub(crate) type Value = u64;
/// The number of a revision of the store.
pub(crate) type Revision = u64;
/// Nanoseconds since the test began, by one clock for all recorders.
pub(crate) type Time = u64;

/// What stands at a key, and the revision that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) value: Value,
    pub(crate) revision: Revision,
}

/// All registers at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) at: Revision,
    pub(crate) cells: BTreeMap<Key, Cell>,
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Any,
    Absent,
    Revision(Revision),
}

/// One write of a batch; no value deletes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) key: Key,
    pub(crate) value: Option<Value>,
    pub(crate) expect: Expect,
}

/// What the writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is stored, as this revision.
    Done(Revision),
    /// An expectation was not met; nothing is stored.
    Conflict,
    /// Nothing that can be relied on: stored whole or not at all, by now or later.
    Unknown,
}

/// A batch. Each holds at least one value that stays until the end or is deleted by a batch that was acknowledged, so
/// that what became of an unknown one shows.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) invoked: Time,
    pub(crate) returned: Time,
    pub(crate) ops: Vec<Op>,
    pub(crate) outcome: Outcome,
}

/// A read of all registers.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) invoked: Time,
    pub(crate) returned: Time,
    /// The revision that was asked for at least, of a replica; a read without one is to be linearizable.
    pub(crate) at_least: Option<Revision>,
    pub(crate) state: State,
}

/// What moved a watcher from one revision to another.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) time: Time,
    pub(crate) revision: Revision,
    /// Whether it replaces all that the watcher had.
    pub(crate) whole: bool,
    pub(crate) puts: Vec<(Key, Cell)>,
    pub(crate) deletes: Vec<Key>,
}

/// Everything that one watcher was sent.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) name: String,
    /// What it held before.
    pub(crate) from: State,
    pub(crate) steps: Vec<Step>,
}

/// Everything that was seen from one quiet moment to another.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) start: State,
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
    pub(crate) watches: Vec<Watch>,
    /// A linearizable read after the last write ended.
    pub(crate) end: State,
}
