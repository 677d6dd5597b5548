//! The web page of the control plane at `/ui/`: who calls whom and how well, one service, why a call goes where it goes, and the mesh by
//! regions, waste, security and processes.
//!
//! The files of the page are built in `web/`, and are part of the program. Beneath `/ui/api/` it reads what a [`Source`] knows and what
//! gRPC services respond to commands, once or as a stream of events, and changes nothing. Who may read what is decided in front of it,
//! by the path and the query.
//!
//! Calls are added up here by pair, and laid out in the browser: a stream carries numbers, not pictures, and its size is that
//! of the pairs. Having the page read metrics of Prometheus was rejected: it would need one, and an operator of one tenant would see
//! all.

mod api;
mod commands;
mod files;
mod graph;
mod history;
mod inventory;
mod panels;
mod security;
mod service;
mod shown;
mod snapshots;
mod source;
mod streams;
mod why;

use std::sync::Arc;

use axum::{Router, middleware::from_fn_with_state};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use security::HostNames;
pub use source::{AuditLog, Audited, Certificate, InstanceLoad, Refusal, Source};

/// What the page needs besides its source.
#[derive(Debug)]
pub struct PageConfig {
    /// Host names by which browsers may address the page, besides `localhost` and IP addresses.
    pub hosts: HostNames,
    /// The release of the process, for people.
    pub version: &'static str,
    /// The gRPC services of the process, without a check of callers.
    pub services: Routes,
    /// Ends streams when the process stops.
    pub closing: CancellationToken,
}

/// The routes of the page.
pub fn router(source: Arc<dyn Source>, config: PageConfig) -> Router {
    let PageConfig { hosts, version, services, closing } = config;
    let served = api::Served::new(source, services, (version, closing));
    let pages = files::router().merge(api::router(served));
    pages.layer(from_fn_with_state(Arc::new(hosts), security::guard))
}
