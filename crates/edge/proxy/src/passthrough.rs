//! Captured connections: clients opened them to another address, and the system redirected them to this proxy.

pub(crate) mod captured_requests;
pub(crate) mod http2_passthrough;
pub(crate) mod metrics;
pub(crate) mod original_dst;
pub(crate) mod protocol_detect;
pub(crate) mod traffic_classification;
