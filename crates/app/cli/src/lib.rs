//! Commands for people and programs: they read and write records, check the mesh, call, and simulate.
//!
//! Each command is a module with its arguments and a function `run`; the binary `fairmesh` puts them into one tree.
//! `dev` is here too, although it runs processes: it applies a folder of records as `apply` does.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod audit;
pub mod calibrate;
pub mod call;
mod caller_region;
pub mod check;
pub mod dev;
mod document_diff;
pub mod drain;
pub mod explain;
mod findings_report;
pub mod identity;
mod lagging_callers;
mod manifests;
pub mod records;
mod request_args;
pub mod schema;
pub mod security;
pub mod shards;
pub mod sim;
pub mod version;
pub mod wait;
mod yaml_diff;
