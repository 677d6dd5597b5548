//! Shared code of commands: arguments, connections, records as views, output and errors.
//!
//! The crate is a dependency of the commands that run processes (`processes`), the demo, and the other commands
//! (`cli`), so that none of them depends on another for an argument. Rejected: helpers in one crate with all commands,
//! where every module used every other.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod arguments;
pub mod cell_text;
pub mod connect;
pub mod default_paths;
pub mod failure;
pub mod output;
pub mod process_stat;
pub mod rib_reader;
pub mod route_cells;
pub mod socket_table;
pub mod stop_signals;
pub mod view_reader;
