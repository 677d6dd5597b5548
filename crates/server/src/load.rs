//! How many calls are under way, exactly.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use http::HeaderValue;

use super::{gate::Gate, metrics::Metrics, refusal::Refusals, work::Keyed};

/// Counts the calls that a server is working on.
///
/// One word holds the outstanding calls (low half) and the calls ever begun (high half, wrapping), so that beginning a
/// call is a single atomic addition and a drain can still see that a call came and went between two looks.
#[derive(Debug, Default)]
pub(super) struct Load {
    calls: AtomicU64,
    streams: AtomicU32,
    /// The share of the CPU limit in use, in thousandths, plus one; 0 while it is not known.
    cpu: AtomicU32,
    metrics: Metrics,
    refusals: Refusals,
    /// Which server this is, as it says where it refuses a call; `None` where nothing registers it.
    name: Option<HeaderValue>,
}

const BEGIN: u64 = (1 << 32) + 1;

/// What a server is working on at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Calls whose answer is not complete, without streams.
    pub calls: u32,
    /// Calls whose answer has begun and goes on for long; another kind of load than short calls (Uber, assisted balancing).
    pub streams: u32,
}

/// How many calls a server takes at a time, and what it did not carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// How many calls may be under way now; `None` without a bound.
    pub limit: Option<u32>,
    /// What is under way.
    pub outstanding: Outstanding,
    /// Calls that were refused since there were as many; ever.
    pub refused: u64,
    /// Calls that were cut off since the time that their callers gave had passed; ever.
    pub late: u64,
}

/// What an answer says of the server's load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    pub(super) outstanding: Outstanding,
    /// The share of the CPU limit in use, in thousandths; `None` where it is not known.
    pub(super) cpu: Option<u16>,
    /// What the program says itself.
    pub(super) metrics: &'a Metrics,
}

impl Load {
    /// Nothing yet, of this server.
    pub(super) fn of(name: &str) -> Self {
        Self { name: HeaderValue::from_str(name).ok(), ..Self::default() }
    }

    /// Which server it is of.
    pub(super) fn name(&self) -> Option<&HeaderValue> {
        self.name.as_ref()
    }

    /// What to say now in an answer to a call that is not counted.
    pub(super) fn report(&self) -> Report<'_> {
        let cpu = self.cpu.load(Ordering::Relaxed).checked_sub(1);
        let cpu = cpu.and_then(|cpu| u16::try_from(cpu).ok());
        Report { outstanding: self.outstanding(), cpu, metrics: &self.metrics }
    }

    /// What the program itself says of its load.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What was not carried out, or not to the end.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Keeps how busy the CPU is.
    pub(super) fn set_cpu(&self, share: Option<u16>) {
        self.cpu.store(share.map_or(0, |share| u32::from(share) + 1), Ordering::Relaxed);
    }

    /// What is under way now.
    pub(super) fn outstanding(&self) -> Outstanding {
        Outstanding {
            calls: low(self.calls.load(Ordering::Relaxed)),
            streams: self.streams.load(Ordering::Relaxed),
        }
    }

    /// A number that changes whenever a call begins or ends.
    pub(super) fn activity(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Calls ever begun; goes round at 2³².
    #[allow(clippy::cast_possible_truncation)] // 32 bits are left
    pub(super) fn begun(&self) -> u32 {
        (self.calls.load(Ordering::Relaxed) >> 32) as u32
    }

    /// As [`begin`](Self::begin), where the fixed bound of the gate admits another call.
    pub(super) fn enter(
        self: &Arc<Self>,
        gate: &Gate,
        keyed: impl FnOnce() -> Option<Keyed>,
    ) -> Option<CallGuard> {
        if gate.is_open() {
            return Some(self.begin(keyed()));
        }
        let fits = |word: u64| {
            let outstanding = Outstanding { calls: low(word), ..self.outstanding() };
            gate.admits(outstanding).then(|| word.wrapping_add(BEGIN))
        };
        match self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Some(CallGuard { load: Arc::clone(self), stream: false, keyed: keyed() }),
            Err(_) => {
                gate.refused();
                None
            }
        }
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, keyed: Option<Keyed>) -> CallGuard {
        self.calls.fetch_add(BEGIN, Ordering::Relaxed);
        CallGuard { load: Arc::clone(self), stream: false, keyed }
    }
}

/// The low half, which never borrows from the high one: every guard takes back exactly what it added.
#[allow(clippy::cast_possible_truncation)] // the high half is another counter
fn low(word: u64) -> u32 {
    word as u32
}

/// One call under way. Dropping it, however the call ended, takes it off the count.
#[derive(Debug)]
pub(super) struct CallGuard {
    load: Arc<Load>,
    stream: bool,
    /// The call as work of its shard, where it carries a key; what streams, does little most of the time.
    keyed: Option<Keyed>,
}

impl CallGuard {
    /// From now on this call counts as a stream.
    pub(super) fn becomes_stream(&mut self) {
        if !self.stream {
            self.stream = true;
            self.keyed = None;
            self.load.streams.fetch_add(1, Ordering::Relaxed);
            self.load.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether this call counts as a stream.
    pub(super) fn is_stream(&self) -> bool {
        self.stream
    }

    /// Ends the call; what it was counted by.
    pub(super) fn end(self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    /// What to say in the answer: of what is under way all besides this call, since that is what its caller finds once
    /// it has the answer.
    pub(super) fn report(&self) -> Report<'_> {
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
    fn calls_and_streams_are_counted_apart_and_exactly() {
        let load = Arc::new(Load::default());
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
        assert_ne!(load.activity(), before, "calls that came and went leave a trace");
        assert_eq!(load.begun(), 2);
    }
}
