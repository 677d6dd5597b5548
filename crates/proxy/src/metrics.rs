//! What a proxy counts. Labels are names of services that exist, and classes: their number is bounded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{codes::GrpcCodes, signals::ByRegion, tls, tunnel::Carried};

/// What happened to requests of one service.
#[derive(Debug, Default)]
pub(crate) struct Golden {
    pub(crate) answers: ByRegion,
    /// By status, where they are answers to calls of gRPC.
    pub(crate) codes: GrpcCodes,
    /// Those of them that the proxy answered itself, since no server did.
    pub(crate) faults: AtomicU64,
    pub(crate) under_way: AtomicU64,
}

/// What happened to the rest.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) accepted: AtomicU64,
    pub(crate) open: AtomicU64,
    /// Waits for a place, or for the system to give a descriptor.
    pub(crate) accepts_delayed: AtomicU64,
    pub(crate) broken: AtomicU64,
    pub(crate) cut: AtomicU64,
    /// Connections cut off since they took back most of what they asked.
    pub(crate) restless: AtomicU64,
    /// Connections cut off since they sent frames that ask for nothing, and hardly any others.
    pub(crate) flooding: AtomicU64,
    /// Answers over HTTP/2 that were dropped since their programs made no room for them.
    pub(crate) untaken: AtomicU64,
    /// Requests for no service.
    pub(crate) nobody: AtomicU64,
    /// Requests for what a proxy does not do.
    pub(crate) refused: AtomicU64,
    /// Requests that the proxy forwarded to itself, over and over.
    pub(crate) looped: AtomicU64,
    /// Requests whose bodies were longer than they may be.
    pub(crate) too_large: AtomicU64,
    pub(crate) log_lines_dropped: AtomicU64,
    /// Tunnels begun, and those that are open.
    pub(crate) tunnels: AtomicU64,
    pub(crate) tunnels_open: AtomicU64,
    /// Tunnels ended since nothing came over them, and those that broke.
    pub(crate) tunnels_idle: AtomicU64,
    pub(crate) tunnels_broken: AtomicU64,
    /// Bytes that tunnels carried to servers, and from them; of those that have ended.
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    /// Connections that did not begin with a head of the PROXY protocol where one was due.
    pub(crate) proxy_heads_refused: AtomicU64,
    /// What became of TLS.
    pub(crate) tls: tls::Counts,
    /// Connections of programs over TCP that no server could be found for.
    pub(crate) tcp_refused: AtomicU64,
    pub(crate) captured: Captured,
}

/// What happened to connections that the system redirected here.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    /// Those that turned out to be for services, or of HTTP/2, whose requests tell it one by one.
    pub(crate) served: AtomicU64,
    /// Those that went on to where they were meant to go, and those of them that nobody took there.
    pub(crate) passed_on: AtomicU64,
    pub(crate) in_vain: AtomicU64,
    /// Requests for no service on those that were served, of HTTP/2, that went on as well.
    pub(crate) requests_passed_on: AtomicU64,
    /// Those that were for no service where nothing else is let through, and requests of that kind.
    pub(crate) refused: AtomicU64,
    /// Those that came here directly, and those that were the proxy's own.
    pub(crate) looped: AtomicU64,
}

impl Metrics {
    /// Counts what a tunnel carried.
    pub(crate) fn carried(&self, Carried { up, down }: Carried) {
        self.bytes_up.fetch_add(up, Relaxed);
        self.bytes_down.fetch_add(down, Relaxed);
    }

    /// Bytes that tunnels carried to servers, and from them.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [&self.bytes_up, &self.bytes_down].map(|bytes| bytes.load(Relaxed))
    }
}

/// A number counted up while this lives.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a AtomicU64);

impl<'a> Held<'a> {
    pub(crate) fn new(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Relaxed);
        Self(counter)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Counts one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Golden {
    /// Adds what another one counted, but for what is in flight.
    pub(crate) fn add(&self, other: &Self) {
        self.answers.add(&other.answers);
        self.codes.add(&other.codes);
        self.faults.fetch_add(other.faults.load(Relaxed), Relaxed);
    }

    /// Whether a server ever answered, as far as is counted.
    pub(crate) fn was_answered(&self) -> bool {
        self.answers.classes().iter().sum::<u64>() >= self.faults.load(Relaxed)
    }
}
