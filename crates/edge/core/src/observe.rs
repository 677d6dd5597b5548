//! Metrics by service, access log, traces, and records of recent requests.

pub mod access_log;
pub(crate) mod completion;
pub(crate) mod ejection_log;
pub mod endpoint_metrics;
pub(crate) mod explain_header;
pub mod grpc_status;
pub mod observer;
pub mod recent_requests;
pub mod request_info;
pub(crate) mod request_observation;
pub mod response_metrics;
pub mod served_metrics;
pub mod served_requests;
mod served_series;
pub mod service_metrics;
pub mod spans;
pub mod tap;
