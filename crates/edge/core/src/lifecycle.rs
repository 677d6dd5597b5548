//! Start, stop, hot upgrade, and the service manager.

pub mod process_succession;
pub mod service_manager;
pub mod socket_handover;
