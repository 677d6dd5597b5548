use std::collections::BTreeMap;

/// A register: a key of the routing information base, as a number.
pub(crate) type Key = u64;
/// A value unique to its write, so that each observation identifies the write.
pub(crate) type Value = u64;
/// Revision number of the store.
pub(crate) type Revision = u64;
/// Nanoseconds since the start of the test, by one clock for all recorders.
pub(crate) type Time = u64;

/// Value of a key, and the revision that wrote it.
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

/// Expectation of a write about the current state of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Any,
    Absent,
    Revision(Revision),
}

/// One write of a batch; without a value, it deletes the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) key: Key,
    pub(crate) value: Option<Value>,
    pub(crate) expect: Expect,
}

/// Outcome of a write, as reported to the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole batch is stored, with this revision.
    Done(Revision),
    /// An expectation was not met, and nothing is stored.
    Conflict,
    /// The batch may be stored whole or not at all, now or later.
    Unknown,
}

/// A batch of writes. Each batch has at least one value that stays until the end or is deleted by an acknowledged
/// batch, so that the fate of an unacknowledged batch is visible.
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
    /// Minimum revision that was requested from a replica; a read without one must be linearizable.
    pub(crate) at_least: Option<Revision>,
    pub(crate) state: State,
}

/// An update that moved a watcher from one revision to another.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) time: Time,
    pub(crate) revision: Revision,
    /// Whether the update is a snapshot that replaces the watcher's whole state.
    pub(crate) whole: bool,
    pub(crate) puts: Vec<(Key, Cell)>,
    pub(crate) deletes: Vec<Key>,
}

/// Everything that one watcher received.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) name: String,
    /// State of the watcher before its first step.
    pub(crate) from: State,
    pub(crate) steps: Vec<Step>,
}

/// Everything observed between two quiet moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) start: State,
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
    pub(crate) watches: Vec<Watch>,
    /// A linearizable read after the last write ended.
    pub(crate) end: State,
}
