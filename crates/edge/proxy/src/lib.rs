//! The client library behind a listener, for programs that cannot link the library (ServiceRouter §2.1).
//!
//! `fairmesh_edge` serves connections and forwards requests. This crate adds the parts of a sidecar:
//! listeners and their configuration (`listeners`); captured connections, which continue to their original
//! destination unless they are for a service (`passthrough`); connections and requests redirected by eBPF
//! programs (`kernel`); a server in front of a program (`inbound`); the admin pages (`admin`); and start,
//! stop and hot upgrade (`lifecycle`).

mod admin;
mod config;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod inbound;
mod kernel;
mod lifecycle;
mod listeners;
mod local_host;
mod passthrough;

pub use config::ProxyConfig;
pub use error::ProxyError;
pub use fairmesh_edge::{
    limits::Limits,
    observe::{
        access_log::{AccessLogConfig, AccessLogFormat},
        endpoint_metrics::EndpointMetrics,
        observer::{ObserverConfig, RequestObserver},
        spans::TraceConfig,
    },
    tls::certificate_files::{TlsError, TlsFiles},
};
pub use fairmesh_otlp::{Collector, Environment, RootSampler, Sampler};
pub use inbound::{
    config::{InboundConfig, InboundEndpoint},
    program_front::ProgramFront,
    server::ServedEndpoint,
};
pub use kernel::container_listeners::{listen_in_container, watch_readable};
pub use lifecycle::run::{BoundProxy, run};
pub use listeners::listener_config::{ListenerConfig, ListenerKind, check_tls};
