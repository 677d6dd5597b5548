//! Start, stop, hot upgrade, and the service manager.

pub(crate) mod bind;
pub(crate) mod handover;
pub(crate) mod run;
mod service_manager;
