//! Start, stop, hot upgrade, and the service manager.

pub mod handover;
pub mod service_manager;
pub mod succession;
