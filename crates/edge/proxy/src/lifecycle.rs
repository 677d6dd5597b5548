//! Start, graceful shutdown, hot upgrade, and the service manager.

pub(crate) mod handover;
pub(crate) mod run;
mod service_manager;
pub(crate) mod shutdown;
