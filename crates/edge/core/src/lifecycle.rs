//! Start, stop, hot upgrade, and the service manager.

pub mod kept_options;
pub mod process_succession;
pub mod service_manager;
pub mod socket_handover;
