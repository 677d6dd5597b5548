//! The admin pages: configuration, readiness, metrics, and explanations of routing decisions.

mod endpoints_page;
pub(crate) mod metrics;
mod process_pages;
pub(crate) mod proxy_info;
mod routes_page;
pub(crate) mod server;
mod service_series;
pub(crate) mod state;
mod tap_page;
