//! Helpers for the tests of several crates: waiting for conditions, sharing the machine, ports, processes,
//! certificates, a real etcd, network namespaces.
//!
//! Only tests depend on this crate. It depends on the model and nothing above it, so that every crate except `model`
//! can use it; a helper that needs the client or the control plane stays with the tests that use it. Rejected: a
//! `testing` feature in each crate, which would compile every crate twice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(feature = "tls")]
mod any_server;
mod cgroups;
mod endpoints;
mod etcd;
mod eventually;
mod isolation;
pub mod namespaces;
mod ports;
mod processes;

#[cfg(feature = "tls")]
pub use any_server::AnyServer;
pub use cgroups::remove_cgroups;
pub use endpoints::endpoint;
pub use etcd::{Etcd, call as call_etcd};
pub use eventually::{PATIENCE, eventually, eventually_async, eventually_blocking, eventually_within};
pub use isolation::{
    Exclusive, MODE, NEEDS_MACHINE, RUNS_ALONE, RUNS_SHARED, SKIPPED, Shared, alone, beside_others, is_soak,
    skipped,
};
pub use ports::free_port;
pub use processes::{Process, Program, Run, binary, fairmesh, run, tool};
