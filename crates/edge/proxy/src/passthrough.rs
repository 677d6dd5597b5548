//! Captured connections: clients opened them to another address, and the system redirected them to this proxy.

pub(crate) mod admit;
pub(crate) mod capture;
pub(crate) mod http2;
pub(crate) mod metrics;
pub(crate) mod original_dst;
pub(crate) mod protocol_detect;
