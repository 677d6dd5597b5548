//! The client library behind a listener, for programs that cannot link it (ServiceRouter §2.1).
//!
//! `listen` accepts connections, `http1` and `http2` parse their requests, and `forward` finds the service of each and
//! sends it as a call of `client`: the same records, picks and retries as in the library. A proxy adds the duties of an
//! intermediary: hop-by-hop headers stay on their connection (`forward/hop_by_hop`), faults become responses
//! (`forward/error_response`), captured and redirected connections (`kernel`) to no service go on to their original destination (`passthrough`),
//! and no request in flight is lost when the proxy stops or another one takes over (`lifecycle`, `http2/stream_drain`).

mod admin;
mod config;
mod counter;
mod error;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod http1;
mod http2;
mod inbound;
mod kernel;
mod lifecycle;
mod limits;
mod listen;
mod listeners;
mod metrics;
mod observe;
mod passthrough;
mod server;
mod services;
mod shutdown;
mod tls;
mod tunnel;

pub use config::ProxyConfig;
pub use error::ProxyError;
pub use fairmesh_otlp::{Collector, Environment, RootSampler, Sampler};
pub use inbound::{
    config::{InboundConfig, InboundEndpoint},
    server::{BoundInbound, InboundServer},
};
pub use lifecycle::run::{BoundProxy, run};
pub use limits::Limits;
pub use listen::proxy_protocol;
pub use listeners::listener_config::{ListenerConfig, ListenerKind, check_tls};
pub use observe::{
    access_log::{AccessLogConfig, AccessLogFormat},
    endpoint_metrics::EndpointMetrics,
    spans::TraceConfig,
};
pub use tls::files::{TlsError, TlsFiles};
pub use tunnel::copy::BidirectionalCopy;
