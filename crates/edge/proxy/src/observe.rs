//! Metrics by service, access log, traces, and records of recent requests.

pub(crate) mod access_log;
pub(crate) mod completion;
pub(crate) mod ejections;
pub(crate) mod endpoint_metrics;
pub(crate) mod explain_header;
pub(crate) mod grpc_status;
pub(crate) mod observation;
pub(crate) mod observer;
pub(crate) mod recent_requests;
pub(crate) mod request_info;
pub(crate) mod response_metrics;
pub(crate) mod service_metrics;
pub(crate) mod spans;
pub(crate) mod tap;
