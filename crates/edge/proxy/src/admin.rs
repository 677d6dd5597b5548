//! The admin pages: configuration, readiness, metrics, and why requests went where they went.

mod endpoints_page;
pub(crate) mod metrics;
mod pages;
pub(crate) mod proxy_info;
mod routes_page;
pub(crate) mod server;
mod service_series;
pub(crate) mod state;
mod tap_page;
