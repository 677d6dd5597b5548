//! Panels of the pages about the whole mesh and about a service. Each panel shows what a command shows.

pub(crate) mod attribution;
pub(crate) mod audit;
pub(crate) mod controllers;
pub(crate) mod denied_calls;
pub(crate) mod drains;
pub(crate) mod followers;
pub(crate) mod identity;
pub(crate) mod lagging_callers;
pub(crate) mod planner;
pub(crate) mod region_calls;
pub(crate) mod security_gaps;
pub(crate) mod shards;
pub(crate) mod topology;
pub(crate) mod traces;
pub(crate) mod what_changed;
pub(crate) mod zone_probes;

use fairmesh_wire::v1::Cursor;

/// Returns the text; `None` if it is empty.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the revision in a cursor. The stores that the page shows have a single partition of revisions.
fn revision(cursor: Option<&Cursor>) -> Option<u64> {
    Some(cursor?.numbers.get(&0).copied().unwrap_or_default())
}
