//! Commands that read and write records of the RIB.

pub(crate) mod apply;
mod breaking_change;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod get;
pub(crate) mod history;
mod history_key;
mod kinds;
pub(crate) mod lint;
mod record_name;
pub(crate) mod rollback;
mod value_document;

pub(crate) use value_document::{contents, value_document};
