//! The panels of the pages of the whole mesh and of a service: each shows what a command shows.

pub(crate) mod audit;
pub(crate) mod authority;
pub(crate) mod callers_behind;
pub(crate) mod controllers;
pub(crate) mod denied;
pub(crate) mod drains;
pub(crate) mod followers;
pub(crate) mod planner;
pub(crate) mod probes;
pub(crate) mod protection;
pub(crate) mod shards;
pub(crate) mod topology;

use fairmesh_wire::v1::Cursor;

/// Text that may be missing.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// The revision of a cursor; stores of the page have one partition of revisions.
fn revision(cursor: Option<&Cursor>) -> Option<u64> {
    Some(cursor?.numbers.get(&0).copied().unwrap_or_default())
}
