//! Counts responses by gRPC status. The HTTP status says little about gRPC calls: nearly all are 200.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_headers::GRPC_STATUS;
use http::HeaderMap;

use crate::counter::increment;

/// Status names by code. The last name is for streams that ended without a status or with an unknown one.
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
const NO_STATUS: usize = NAMES.len() - 1;

/// The name of a code.
pub(crate) fn status_name(code: u16) -> &'static str {
    NAMES.get(usize::from(code)).copied().unwrap_or(NAMES[NO_STATUS])
}

/// The name of the gRPC status in headers or trailers, if there is one. An invalid value counts as UNKNOWN,
/// as gRPC clients read it.
pub(crate) fn named_in(headers: &HeaderMap) -> Option<&'static str> {
    Some(match status_index(headers.get(GRPC_STATUS)?.as_bytes()) {
        NO_STATUS => "UNKNOWN",
        index => NAMES[index],
    })
}

/// Whether a status is a failure of the server rather than of the client (OpenTelemetry semantic conventions
/// for gRPC): UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS.
pub(crate) fn is_server_failure(code: u16) -> bool {
    matches!(code, 2 | 4 | 12 | 13 | 14 | 15)
}

/// Number of calls by status. Allocated by the first call, since most services do not use gRPC.
#[derive(Debug, Default)]
pub struct GrpcStatusCounts(OnceLock<Box<[AtomicU64; NAMES.len()]>>);

impl GrpcStatusCounts {
    /// Counts the status in headers or trailers. Returns whether it is a failure of the server; `None` if
    /// there is no status.
    pub(crate) fn record(&self, headers: &HeaderMap) -> Option<bool> {
        let code = status_index(headers.get(GRPC_STATUS)?.as_bytes());
        self.add_one(code);
        // An invalid value counts as UNKNOWN, as gRPC clients read it.
        Some(code == NO_STATUS || u16::try_from(code).is_ok_and(is_server_failure))
    }

    /// Counts a stream that ended without a status.
    pub(crate) fn record_missing(&self) {
        self.add_one(NO_STATUS);
    }

    fn add_one(&self, code: usize) {
        increment(&self.counts()[code]);
    }

    /// Adds the counts of `other`.
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

    /// Name and count of each status that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.get().into_iter().flat_map(|counts| counts.iter());
        let counts = NAMES.iter().zip(counts).map(|(name, count)| (*name, count.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

/// The index of a status in [`NAMES`].
fn status_index(code: &[u8]) -> usize {
    let code = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok());
    code.filter(|code| *code < NO_STATUS).unwrap_or(NO_STATUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_statuses_are_counted_by_name() {
        let statuses = GrpcStatusCounts::default();
        assert_eq!(statuses.iter().count(), 0);
        for (code, fails) in
            [("0", false), ("5", false), ("14", true), ("14", true), ("99", true), ("x", true)]
        {
            let headers = [(GRPC_STATUS, code.parse().unwrap())].into_iter().collect();
            assert_eq!(statuses.record(&headers), Some(fails), "{code}");
        }
        assert_eq!(statuses.record(&HeaderMap::new()), None);
        statuses.record_missing();
        let counted = [("OK", 1), ("NOT_FOUND", 1), ("UNAVAILABLE", 2), ("(none)", 3)];
        assert_eq!(statuses.iter().collect::<Vec<_>>(), counted);
    }
}
