//! Where endpoints and shards of Fairmesh come from.
pub mod manifest;
