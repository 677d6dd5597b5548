//! Start, graceful shutdown, hot upgrade, and the service manager.

pub(crate) mod handover;
pub(crate) mod run;
pub(crate) mod shutdown;
mod supervisor;
