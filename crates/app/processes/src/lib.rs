//! Commands that run processes of the mesh until they are stopped, inspect them and configure them.
//!
//! The processes are in crates of their own; here are their arguments, default paths and logs. A binary for each of them was
//! rejected: one file to copy, one version to compare.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod agent;
pub mod control;
pub mod daemon_args;
pub mod dns;
pub mod gateway;
pub mod heap;
pub mod kernel;
pub mod keyserver;
pub mod logging;
pub mod lookaside;
pub mod node;
pub mod proxy;
pub mod register;
pub mod rib;
mod size;
