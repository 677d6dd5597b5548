//! Commands that read and write records of the RIB.

pub mod apply;
mod breaking_change;
pub mod delete;
pub mod describe;
pub mod diff;
pub mod get;
pub mod history;
mod history_key;
mod kind_names;
pub mod lint;
mod record_name;
pub mod rollback;
mod value_document;

pub(crate) use value_document::{contents, value_document};
