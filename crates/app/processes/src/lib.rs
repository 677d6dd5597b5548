//! Commands that run, inspect and configure long-running processes of the mesh.
//!
//! The processes are in their own crates; this crate has their arguments, default paths and logs. Rejected: a separate
//! binary for each process. One file to copy means one version to compare.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod agent;
mod byte_size;
pub mod control;
pub mod daemon_args;
pub mod dns;
pub mod gateway;
pub mod heap_trimming;
pub mod kernel;
pub mod keyserver;
pub mod logging;
pub mod lookaside;
pub mod node;
pub mod proxy;
pub mod register;
pub mod rib;
