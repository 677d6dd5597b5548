//! Exact counts of calls in flight.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use http::{HeaderMap, HeaderValue};

use super::{concurrency_limit::ConcurrencyLimit, refusal::Refusals};
use crate::{
    load_report::{custom_metrics::Metrics, response_metrics::ProgramReport},
    shards::shard_load::KeyedCall,
};

/// Counts the calls that a server is processing.
///
/// One word holds the calls in flight (low half) and the calls ever begun (high half, wrapping). Beginning a call is
/// therefore a single atomic addition, and a drain still notices a call that came and went between two reads.
#[derive(Debug, Default)]
pub(crate) struct ServerLoad {
    calls: AtomicU64,
    streams: AtomicU32,
    /// CPU utilization in thousandths of the limit, plus one; 0 while unknown.
    cpu: AtomicU32,
    metrics: Metrics,
    program_report: ProgramReport,
    refusals: Refusals,
    /// Name of this server in rejections; `None` if this process did not register it.
    name: Option<HeaderValue>,
}

const BEGIN: u64 = (1 << 32) + 1;

/// Calls and streams in flight at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outstanding {
    /// Calls whose response is not complete, excluding streams.
    pub calls: u32,
    /// Long-lasting calls whose responses have begun. They are a different load than short calls (Uber, assisted
    /// balancing).
    pub streams: u32,
}

/// The concurrency limit of a server, and the number of calls that it did not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The current limit; `None` without one.
    pub limit: Option<u32>,
    /// Calls and streams in flight.
    pub outstanding: Outstanding,
    /// Total calls rejected by the limit.
    pub refused: u64,
    /// Total calls cancelled at the caller's deadline.
    pub late: u64,
    /// Total calls that the policy did not allow and that were refused.
    pub unauthorized: u64,
    /// Total calls that the policy did not allow but that were let through, because the policy's mode is audit.
    pub audited: u64,
    /// Total connections accepted in plaintext because the policy of a server with mutual TLS is permissive.
    pub plaintext_connections: u64,
    /// Total connections that ended before their TLS handshake was complete: the certificate was refused or missing, or
    /// the peer or a limit closed them.
    pub failed_handshakes: u64,
}

/// The load to report in a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSnapshot<'a> {
    pub(crate) outstanding: Outstanding,
    /// CPU utilization in thousandths of the limit; `None` if unknown.
    pub(crate) cpu: Option<u16>,
    /// Metrics of the program.
    pub(crate) metrics: &'a Metrics,
}

impl ServerLoad {
    /// Creates the load of an idle server with this name.
    pub(crate) fn of(name: &str) -> Self {
        Self { name: HeaderValue::from_str(name).ok(), ..Self::default() }
    }

    /// The name of the server.
    pub(crate) fn name(&self) -> Option<&HeaderValue> {
        self.name.as_ref()
    }

    /// The load for a response to a call that is not counted.
    pub(crate) fn report(&self) -> LoadSnapshot<'_> {
        let cpu = self.cpu.load(Ordering::Relaxed).checked_sub(1);
        let cpu = cpu.and_then(|cpu| u16::try_from(cpu).ok());
        LoadSnapshot { outstanding: self.outstanding(), cpu, metrics: &self.metrics }
    }

    /// Metrics that the program sets.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The program's metrics for planners: those it sets, and those in its responses.
    pub(crate) fn program_metrics(&self) -> Vec<(String, f64)> {
        let mut all: Vec<_> = self.metrics.values().map(|(name, value)| (name.to_owned(), value)).collect();
        let is_idle = self.outstanding() == Outstanding::default();
        for (name, value) in self.program_report.values(is_idle) {
            if all.iter().all(|(known, _)| *known != name) {
                all.push((name, value));
            }
        }
        all
    }

    /// Calls rejected or cancelled.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Sets the CPU utilization.
    pub(crate) fn set_cpu(&self, share: Option<u16>) {
        self.cpu.store(share.map_or(0, |share| u32::from(share) + 1), Ordering::Relaxed);
    }

    /// Calls and streams in flight.
    pub(crate) fn outstanding(&self) -> Outstanding {
        Outstanding {
            calls: low(self.calls.load(Ordering::Relaxed)),
            streams: self.streams.load(Ordering::Relaxed),
        }
    }

    /// A value that changes whenever a call begins or ends.
    pub(crate) fn activity(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Number of calls ever begun; wraps around at 2³².
    #[allow(clippy::cast_possible_truncation)] // 32 bits are left
    pub(crate) fn begun(&self) -> u32 {
        (self.calls.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Like [`begin`](Self::begin), if the fixed limit admits another call.
    pub(crate) fn enter(
        self: &Arc<Self>,
        concurrency_limit: &ConcurrencyLimit,
        keyed: impl FnOnce() -> Option<KeyedCall>,
    ) -> Option<CallGuard> {
        if concurrency_limit.is_unlimited() {
            return Some(self.begin(keyed()));
        }
        let fits = |word: u64| {
            let outstanding = Outstanding { calls: low(word), ..self.outstanding() };
            concurrency_limit.admits(outstanding).then(|| word.wrapping_add(BEGIN))
        };
        match self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Some(CallGuard { load: Arc::clone(self), stream: false, keyed: keyed() }),
            Err(_) => {
                concurrency_limit.record_rejection();
                None
            }
        }
    }

    /// Counts a call until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, keyed: Option<KeyedCall>) -> CallGuard {
        self.calls.fetch_add(BEGIN, Ordering::Relaxed);
        CallGuard { load: Arc::clone(self), stream: false, keyed }
    }
}

/// The low half of the word. It never borrows from the high half, since every guard subtracts exactly what it added.
#[allow(clippy::cast_possible_truncation)] // the high half is another counter
fn low(word: u64) -> u32 {
    word as u32
}

/// A call in flight. Dropping the guard removes the call from the count.
#[derive(Debug)]
pub(crate) struct CallGuard {
    load: Arc<ServerLoad>,
    stream: bool,
    /// Adds the call to the load of its shard, if it has a key. Cleared for a stream, which is idle most of the time.
    keyed: Option<KeyedCall>,
}

impl CallGuard {
    /// Counts this call as a stream from now on.
    pub(crate) fn becomes_stream(&mut self) {
        if !self.stream {
            self.stream = true;
            self.keyed = None;
            self.load.streams.fetch_add(1, Ordering::Relaxed);
            self.load.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether this call counts as a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream
    }

    /// Ends the call and returns the counts.
    pub(crate) fn end(self) -> Arc<ServerLoad> {
        Arc::clone(&self.load)
    }

    /// Takes over the metrics that the program wrote into the headers of the response, or into gRPC trailers.
    pub(crate) fn learn(&self, headers: &HeaderMap, is_grpc: bool) {
        self.load.program_report.learn(headers, is_grpc);
    }

    /// Load reported in this call's response. Excludes the call itself, since its caller wants the load after the
    /// response.
    pub(crate) fn report(&self) -> LoadSnapshot<'_> {
        let mut report = self.load.report();
        let Outstanding { calls, streams } = &mut report.outstanding;
        let own = if self.stream { streams } else { calls };
        *own = own.saturating_sub(1);
        report
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.stream {
            self.load.streams.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.load.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_streams_are_counted_separately_and_exactly() {
        let load = Arc::new(ServerLoad::default());
        let before = load.activity();
        let short = load.begin(None);
        let mut long = load.begin(None);
        assert_eq!(short.report().outstanding, Outstanding { calls: 1, streams: 0 });
        long.becomes_stream();
        long.becomes_stream();
        assert_eq!(load.outstanding(), Outstanding { calls: 1, streams: 1 });
        assert_eq!(long.report().outstanding, Outstanding { calls: 1, streams: 0 });
        drop((short, long));
        assert_eq!(load.outstanding(), Outstanding::default());
        assert_ne!(load.activity(), before, "ended calls change the activity");
        assert_eq!(load.begun(), 2);
    }
}
