//! The client library behind a listener, for programs that cannot link it (ServiceRouter §2.1).
//!
//! A request comes in, `service` finds out which service it is for, and from there on it is a call of `client` like any
//! other: the same records, the same picks, the same retries. What a proxy adds is what it owes to both sides as an
//! intermediary: headers that belong to one connection stay on it (`hops`), faults of the mesh become answers
//! (`answer`), what the system redirected here without being for a service goes on to where it was meant to go (`sniff`,
//! `onward`), and nothing that is under way is lost when it stops (`serve`, `stopping`, `streams`) or another one takes its place
//! (`handover`).

mod access;
mod admin;
mod answer;
mod codes;
mod config;
mod cores;
mod decision;
mod endpoints;
mod error;
mod exposition;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod handover;
mod hops;
mod inbound;
mod insight;
mod lasts;
mod lean;
mod link;
mod listen;
mod loops;
mod max_body;
mod metrics;
mod onward;
mod place;
pub mod proxy_protocol;
mod recent;
mod recycled;
mod restless;
mod rewound;
mod run;
mod serve;
mod service;
mod signals;
mod sniff;
mod spans;
mod stopping;
mod streams;
mod supervisor;
mod tcp;
mod tls;
mod tunnel;
mod untaken;

pub use access::{AccessLog, Form};
pub use config::{Limits, ProxyConfig};
pub use endpoints::EndpointMetrics;
pub use error::ProxyError;
pub use fairmesh_otlp::Collector;
pub use inbound::{Inbound, InboundConfig, Spoken};
pub use listen::{Listen, Traffic};
pub use run::run;
pub use spans::Traces;
pub use tls::{TlsError, TlsFiles, check as check_tls};
