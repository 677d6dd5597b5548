//! The client library behind a listener, for programs that cannot link it (S27).
//!
//! A request comes in, `service` finds out which service it is for, and from there on it is a call of `client` like any
//! other: the same records, the same picks, the same retries. What a proxy adds is what it owes to both sides as an
//! intermediary: headers that belong to one connection stay on it (`hops`), faults of the mesh become answers
//! (`answer`), and nothing that is under way is lost when it stops (`serve`, `stopping`, `streams`) or another one takes its place
//! (`handover`).

mod access;
mod admin;
mod answer;
mod config;
mod cores;
mod decision;
mod error;
mod forward;
mod handover;
mod hops;
mod inbound;
mod lean;
mod listen;
mod metrics;
mod place;
pub mod proxy_protocol;
mod recent;
mod restless;
mod rewound;
mod run;
mod serve;
mod service;
mod stopping;
mod streams;
mod tcp;
mod tunnel;
mod untaken;

pub use access::{AccessLog, Form};
pub use config::{Limits, ProxyConfig};
pub use error::ProxyError;
pub use inbound::{Inbound, InboundConfig, Spoken};
pub use listen::{Listen, Traffic};
pub use run::run;
