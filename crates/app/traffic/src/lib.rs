//! Commands that show traffic: tables of regions, calls and graphs of calls, live requests, traces, imbalance, probes between zones, drains of regions.
//!
//! Each command is a module with its arguments and a function `run`; the binary `fairmesh` puts them into one tree.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod cost;
pub mod imbalance;
pub mod probe;
pub mod reconnect;
pub mod region_drain;
pub mod tap;
pub mod trace;
pub mod traffic;
