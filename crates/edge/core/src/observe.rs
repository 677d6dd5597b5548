//! Metrics by service, access log, traces, and records of recent requests.

pub mod access_log;
pub(crate) mod completion;
pub(crate) mod ejections;
pub mod endpoint_metrics;
pub(crate) mod explain_header;
pub mod grpc_status;
pub(crate) mod observation;
pub mod observer;
pub mod recent_requests;
pub mod request_info;
pub mod response_metrics;
pub mod served;
pub mod served_metrics;
mod served_series;
pub mod service_metrics;
pub mod spans;
pub mod tap;
