//! Commands for people and programs: they read and write records, observe the mesh, call, and simulate.
//!
//! Each command is a module with its arguments and a function `run`; the binary `fairmesh` puts them into one tree.
//! `dev` is here too, although it runs processes: it applies a folder of records as `apply` does.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod audit;
pub mod calibrate;
pub mod call;
mod caller_region;
mod callers_behind;
pub mod check;
pub mod dev;
mod document_diff;
pub mod drain;
pub mod explain;
mod finding;
pub mod identity;
pub mod imbalance;
mod manifests;
mod reconnect;
pub mod records;
mod region_drain;
mod request_args;
pub mod schema;
pub mod security;
pub mod shards;
pub mod sim;
pub mod tap;
pub mod traffic;
pub mod version;
pub mod wait;
mod yaml_diff;
