//! What the commands share: arguments, connections, records as views, output and errors.
//!
//! It lies beneath the commands that run processes (`processes`), the demo and the commands of people (`cli`), so that none
//! of them reaches another for an argument. Helpers in the crate that holds all commands were rejected: every module of it
//! used every other.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod arguments;
pub mod cell_text;
pub mod connect;
pub mod default_paths;
pub mod failure;
pub mod output;
pub mod process_stat;
pub mod rib_reader;
pub mod socket_table;
pub mod stop_signals;
pub mod view;
