//! Commands that run a process of the mesh until it is stopped.

pub(crate) mod agent;
pub(crate) mod control;
mod daemon_args;
mod default_paths;
pub(crate) mod lookaside;
pub(crate) mod proxy;
pub(crate) mod rib;
