//! Statuses of gRPC, which HTTP does not see: nearly every answer is 200 there.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_client::proxy_support::{BodyEnd, BodyObserver};
use fairmesh_headers::GRPC_STATUS;
use http::HeaderMap;
use http_body::Frame;

use crate::{metrics::count, service::Target};

/// By number. The last one is of streams that ended without a status, or with one that gRPC does not know.
const NAMES: [&str; 18] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
    "(none)",
];
const NONE: usize = NAMES.len() - 1;

/// How many calls ended with each status; made with the first one, since most services speak no gRPC.
#[derive(Debug, Default)]
pub(crate) struct GrpcCodes(OnceLock<Box<[AtomicU64; NAMES.len()]>>);

impl GrpcCodes {
    /// Counts the status in headers or trailers, where there is one; says whether there was.
    pub(crate) fn read(&self, headers: &HeaderMap) -> bool {
        let code = headers.get(GRPC_STATUS).map(|code| number(code.as_bytes()));
        if let Some(code) = code {
            self.count(code);
        }
        code.is_some()
    }

    /// Counts a stream that ended without a status.
    pub(crate) fn broke_off(&self) {
        self.count(NONE);
    }

    fn count(&self, code: usize) {
        count(&self.counts()[code]);
    }

    /// Adds what another one counted.
    pub(crate) fn add(&self, other: &Self) {
        let Some(others) = other.0.get() else { return };
        let counts = self.counts().iter().zip(others.iter());
        for (count, other) in counts {
            count.fetch_add(other.load(Relaxed), Relaxed);
        }
    }

    fn counts(&self) -> &[AtomicU64; NAMES.len()] {
        self.0.get_or_init(|| Box::new([const { AtomicU64::new(0) }; NAMES.len()]))
    }

    /// Each status that came, with its name and how often.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.get().into_iter().flat_map(|counts| counts.iter());
        let counts = NAMES.iter().zip(counts).map(|(name, count)| (*name, count.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

/// The status as a number: an index of [`NAMES`].
fn number(code: &[u8]) -> usize {
    let code = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok());
    code.filter(|code| *code < NONE).unwrap_or(NONE)
}

/// Answers of a service that speaks gRPC, whose status comes behind them.
impl BodyObserver for Target {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.golden.codes.read(trailers);
        }
    }

    fn ended(&self, end: BodyEnd) {
        if end != BodyEnd::Complete {
            self.golden.codes.broke_off();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_counted_by_name() {
        let codes = GrpcCodes::default();
        assert_eq!(codes.each().count(), 0);
        for code in ["0", "14", "14", "99", "x"] {
            assert!(codes.read(&[(GRPC_STATUS, code.parse().unwrap())].into_iter().collect()));
        }
        assert!(!codes.read(&HeaderMap::new()));
        codes.broke_off();
        assert_eq!(codes.each().collect::<Vec<_>>(), [("OK", 1), ("UNAVAILABLE", 2), ("(none)", 3)]);
    }
}
