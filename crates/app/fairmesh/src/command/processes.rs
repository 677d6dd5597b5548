//! Commands of the processes of the mesh: they run them until stopped, inspect and configure them.

pub(crate) mod agent;
pub(crate) mod control;
mod daemon_args;
pub(super) mod default_paths;
pub(crate) mod dev;
pub(crate) mod keyserver;
pub(crate) mod lookaside;
pub(crate) mod proxy;
pub(crate) mod rib;
