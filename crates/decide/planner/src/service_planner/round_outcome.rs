use fairmesh_model::{Label, Region, RegionTable};

use super::STARTING;

/// Why the tables were not planned anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In one word, for metrics.
    pub reason: &'static str,
    /// For operators.
    pub text: String,
}

impl Refused {
    /// Whether the reports are at fault, and not the settings, the servers, or the time since a start.
    pub(crate) fn is_of_reports(&self) -> bool {
        !matches!(self.reason, STARTING | "held" | "local_only" | "no_capacity" | "mismatch")
    }
}

/// A table to be written; `None` deletes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableWrite {
    /// The region of the callers.
    pub from: Region,
    /// The table.
    pub table: Option<RegionTable>,
    /// The revision that it replaces; `None` if there is none.
    pub replaces: Option<u64>,
}

/// A change of a table, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct ShiftNote {
    /// When it was planned, by the clock of [`crate::Now::ms`].
    pub at_ms: u64,
    /// The region of the callers.
    pub from: Region,
    /// Their class; `None` of calls without one of their own.
    pub class: Option<Label>,
    /// From where to where, how much, and why.
    pub text: String,
}
