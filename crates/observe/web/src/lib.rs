//! The web page of the control plane at `/ui/`. It shows who calls whom and how well, single services, why a call
//! goes where it goes, and the mesh by regions, waste, security and processes.
//!
//! The files of the page are built in `web/` and embedded in the program. At `/ui/api/` the page reads what a
//! [`Source`] knows and what gRPC services respond to commands, once or as a stream of events. It changes nothing.
//! Access is checked in front of the page, by path and query.
//!
//! Calls are summed by pair here, and drawn in the browser: a stream carries numbers instead of pictures, and its
//! size depends on the number of pairs. Reading metrics from Prometheus was rejected: the page would need a
//! Prometheus, and an operator of one tenant would see all tenants.

mod api;
mod browser_security;
mod call_graph;
mod command_queries;
mod event_delta;
mod event_streams;
mod explain_form;
mod page_files;
mod page_source;
mod panels;
mod policy_history;
mod proxy_requests;
mod service;
mod service_inventory;
mod shared_snapshots;

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, middleware::from_fn_with_state};
use fairmesh_pages::HostNames;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use page_source::{AuditLog, Audited, Certificate, InstanceLoad, Refusal, RegionSteps, Source};

/// Configuration of the page besides its source.
#[derive(Debug)]
pub struct PageConfig {
    /// Host names under which browsers may address the page, besides `localhost` and IP addresses.
    pub hosts: HostNames,
    /// Release of the process, for display.
    pub version: &'static str,
    /// Admin addresses of proxies whose requests the page shows.
    pub proxies: Vec<SocketAddr>,
    /// gRPC services of the process, without access checks.
    pub services: Routes,
    /// Cancelled when the process stops, to end streams.
    pub closing: CancellationToken,
}

/// Returns the routes of the page.
pub fn router(source: Arc<dyn Source>, config: PageConfig) -> Router {
    let PageConfig { hosts, version, proxies, services, closing } = config;
    let served = api::Served::new(source, services, (version, closing), proxies);
    let pages = page_files::router().merge(api::router(served));
    pages.layer(from_fn_with_state(Arc::new(hosts), browser_security::guard))
}
