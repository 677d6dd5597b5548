//! Counts of calls for views of the mesh: which services call each other, with which results and how often.
//!
//! A report contains the counts since the previous report. It is numbered, and sent again until it is acknowledged,
//! so each call is counted once. Planners get rates instead ([`TrafficReport`](super::TrafficReport)). Rates were
//! rejected here: a sum of rates over time misses an interval with each lost report, so the counts of callers and
//! servers would never agree.

use std::{collections::BTreeMap, iter, ops::AddAssign, time::Duration};

use super::attributed_cpu::CpuPath;
use crate::{Label, Region, ServiceName, Zone};

/// Maximum number of rows in one [`CountReport`].
pub const MAX_COUNT_ROWS: usize = 4_096;
/// Maximum number of intervals in one [`CountReport`].
pub const MAX_COUNT_INTERVALS: usize = 64;
/// Maximum length of a caller, and of a path, in [`DeniedPath`], in bytes.
pub const MAX_DENIED_CALLER: usize = 512;
/// The number of latency buckets of [`CallCounts`].
pub const LATENCY_BUCKETS: usize = 32;

/// The side that counted a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CountedBy {
    /// The caller: its library, its proxy, or the lookaside that picked for it.
    #[default]
    Caller,
    /// The server.
    Server,
}

/// The properties by which calls are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountedPath {
    /// The called service. A backend of a route counts as a service of its own.
    pub service: ServiceName,
    /// The calling service, if known. Servers know it from the caller's certificate.
    pub caller: Option<ServiceName>,
    /// The side that counted the calls.
    pub by: CountedBy,
    /// The traffic class that the route sets.
    pub class: Option<Label>,
    /// The region of the callers; `None` if the server does not know it.
    pub from: Option<Region>,
    /// The region of the servers; `None` if no server was picked.
    pub to: Option<Region>,
    /// The callers' zone, for services that prefer zones.
    pub from_zone: Option<Zone>,
    /// The servers' zone, for services that prefer zones.
    pub to_zone: Option<Zone>,
}

/// Class of a response. A gRPC response counts by its gRPC status, not by its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseClass {
    /// Unknown, because a caller of a lookaside made the call.
    Unknown,
    /// HTTP 1xx and 2xx.
    Success,
    /// HTTP 3xx.
    Redirection,
    /// HTTP 4xx.
    ClientError,
    /// HTTP 5xx.
    ServerError,
    /// gRPC status 0.
    GrpcOk,
    /// Any other gRPC status, or a gRPC response without one.
    GrpcError,
}

/// Reason why a call had no response from its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// Unknown, because a caller of a lookaside made the call or because a later release sent another fault.
    Unknown,
    /// The service is not declared.
    UnknownService,
    /// The service's records are not available.
    Unavailable,
    /// No endpoint is eligible.
    NoEndpoints,
    /// The call has no key.
    KeyMissing,
    /// No shard holds the key.
    KeyOutside,
    /// The shard has no replica in the requested role.
    NoReplica,
    /// A rate limit refused the call.
    RateLimited,
    /// The region table dropped the call.
    Dropped,
    /// The deadline passed.
    Deadline,
    /// No connection could be made.
    Unreachable,
    /// The connection broke.
    Reset,
    /// The request cannot be sent.
    Invalid,
    /// The server violated the protocol.
    Protocol,
    /// The server is at its concurrency limit.
    Overloaded,
    /// The body is too large.
    TooLarge,
    /// The request came back to a proxy.
    Loop,
    /// The target does not accept the route.
    RouteNotAccepted,
    /// The policy does not allow the caller.
    Unauthorized,
    /// The server does not hold the shard of the key.
    WrongShard,
}

impl ResponseClass {
    /// All classes, in the order of their numbers on the wire.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Success,
        Self::Redirection,
        Self::ClientError,
        Self::ServerError,
        Self::GrpcOk,
        Self::GrpcError,
    ];

    /// The class of an HTTP status.
    #[inline]
    pub const fn of_status(status: u16) -> Self {
        match status / 100 {
            1 | 2 => Self::Success,
            3 => Self::Redirection,
            4 => Self::ClientError,
            5 => Self::ServerError,
            _ => Self::Unknown,
        }
    }

    /// The class of a gRPC response. `is_ok` means that its status is 0.
    #[inline]
    pub const fn of_grpc(is_ok: bool) -> Self {
        if is_ok { Self::GrpcOk } else { Self::GrpcError }
    }

    /// The name in output and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Success => "2xx",
            Self::Redirection => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::GrpcOk => "grpc_ok",
            Self::GrpcError => "grpc_error",
        }
    }
}

impl CallFault {
    /// All faults, in the order of their numbers on the wire.
    pub const ALL: [Self; 20] = [
        Self::Unknown,
        Self::UnknownService,
        Self::Unavailable,
        Self::NoEndpoints,
        Self::KeyMissing,
        Self::KeyOutside,
        Self::NoReplica,
        Self::RateLimited,
        Self::Dropped,
        Self::Deadline,
        Self::Unreachable,
        Self::Reset,
        Self::Invalid,
        Self::Protocol,
        Self::Overloaded,
        Self::TooLarge,
        Self::Loop,
        Self::RouteNotAccepted,
        Self::Unauthorized,
        Self::WrongShard,
    ];

    /// The name in output and JSON, as in metrics and `x-fairmesh-fault`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::UnknownService => "unknown_service",
            Self::Unavailable => "unavailable",
            Self::NoEndpoints => "no_endpoints",
            Self::KeyMissing => "key_missing",
            Self::KeyOutside => "key_outside",
            Self::NoReplica => "no_replica",
            Self::RateLimited => "rate_limited",
            Self::Dropped => "dropped",
            Self::Deadline => "deadline",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Invalid => "invalid",
            Self::Protocol => "protocol",
            Self::Overloaded => "overloaded",
            Self::TooLarge => "too_large",
            Self::Loop => "loop",
            Self::RouteNotAccepted => "route_not_accepted",
            Self::Unauthorized => "unauthorized",
            Self::WrongShard => "wrong_shard",
        }
    }
}

/// The counts of calls on one path. Each call counts once in [`calls`](Self::calls). When it ends, it also counts
/// once in [`responses`](Self::responses) or [`faults`](Self::faults), unless its caller gave up.
///
/// All counts are in one array, so that sums, differences and encodings need no list of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCounts([u64; Self::LEN]);

impl CallCounts {
    const CALLS: usize = 0;
    const RETRIES: usize = 1;
    const TIME_US: usize = 2;
    const REQUEST_BYTES: usize = 3;
    const RESPONSE_BYTES: usize = 4;
    const RESPONSES: usize = 5;
    const FAULTS: usize = Self::RESPONSES + ResponseClass::ALL.len();
    const LATENCY: usize = Self::FAULTS + CallFault::ALL.len();
    /// Number of counts.
    pub const LEN: usize = Self::LATENCY + LATENCY_BUCKETS;

    /// All counts zero.
    pub const ZERO: Self = Self([0; Self::LEN]);

    /// Creates counts from their values, in the order of [`Self::values`].
    pub const fn from_values(values: [u64; Self::LEN]) -> Self {
        Self(values)
    }

    /// All values in a fixed order, which is the order of the methods below.
    pub const fn values(&self) -> &[u64; Self::LEN] {
        &self.0
    }

    /// Number of calls. A call counts once, however often it was attempted.
    pub const fn calls(&self) -> u64 {
        self.0[Self::CALLS]
    }

    /// Number of attempts after the first attempt of a call, including hedged attempts.
    pub const fn retries(&self) -> u64 {
        self.0[Self::RETRIES]
    }

    /// Sum of the time until responses began, over all attempts with a response, in microseconds.
    pub const fn time_us(&self) -> u64 {
        self.0[Self::TIME_US]
    }

    /// Bytes of request bodies.
    pub const fn request_bytes(&self) -> u64 {
        self.0[Self::REQUEST_BYTES]
    }

    /// Bytes of response bodies.
    pub const fn response_bytes(&self) -> u64 {
        self.0[Self::RESPONSE_BYTES]
    }

    /// Final responses by class, in the order of [`ResponseClass::ALL`].
    pub fn responses(&self) -> &[u64] {
        &self.0[Self::RESPONSES..Self::FAULTS]
    }

    /// Calls without a response by fault, in the order of [`CallFault::ALL`].
    pub fn faults(&self) -> &[u64] {
        &self.0[Self::FAULTS..Self::LATENCY]
    }

    /// Attempts with a response by latency bucket; see [`latency_bucket`].
    pub fn latency(&self) -> &[u64] {
        &self.0[Self::LATENCY..]
    }

    /// Sets calls, retries, latency sum in microseconds, request bytes and response bytes.
    #[must_use]
    pub const fn with_totals(mut self, totals: [u64; 5]) -> Self {
        let mut i = 0;
        while i < totals.len() {
            self.0[i] = totals[i];
            i += 1;
        }
        self
    }

    /// Sets responses, faults and latencies. Values beyond the known classes and faults count as unknown; values
    /// beyond the known buckets count in the last bucket.
    #[must_use]
    pub fn with_outcomes(mut self, responses: &[u64], faults: &[u64], latency: &[u64]) -> Self {
        let parts = [
            (Self::RESPONSES, ResponseClass::ALL.len(), responses, 0),
            (Self::FAULTS, CallFault::ALL.len(), faults, 0),
            (Self::LATENCY, LATENCY_BUCKETS, latency, LATENCY_BUCKETS - 1),
        ];
        for (at, len, numbers, beyond) in parts {
            for (i, number) in numbers.iter().enumerate() {
                let i = if i < len { i } else { beyond };
                self.0[at + i] = self.0[at + i].saturating_add(*number);
            }
        }
        self
    }

    /// Number of failures: server errors (5xx, gRPC errors) and all faults.
    pub fn failures(&self) -> u64 {
        let failed = [ResponseClass::ServerError, ResponseClass::GrpcError];
        let responses = failed.into_iter().map(|class| self.responses()[class as usize]);
        responses.chain(self.faults().iter().copied()).fold(0, u64::saturating_add)
    }

    /// The sum of both counts.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self += other;
        self
    }

    /// The increase since `before`. A value that decreased was reset.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].checked_sub(before.0[i]).unwrap_or(self.0[i])))
    }

    /// Removes and returns the fraction `part` / `whole` of the counts, rounded down. The rest stays, so a division
    /// neither loses nor creates calls.
    #[must_use]
    pub fn take_part(&mut self, part: u64, whole: u64) -> Self {
        let whole = u128::from(whole.max(1));
        let taken = self.0.map(|number| {
            u64::try_from(u128::from(number) * u128::from(part) / whole).unwrap_or(number).min(number)
        });
        for (number, taken) in self.0.iter_mut().zip(taken) {
            *number -= taken;
        }
        Self(taken)
    }

    /// The latency quantile at `part`, from 0 to 1, in microseconds. Interpolated within its bucket; `None` without
    /// responses.
    pub fn latency_quantile_us(&self, part: f64) -> Option<u64> {
        let total: u64 = self.latency().iter().fold(0, |sum, count| sum.saturating_add(*count));
        if total == 0 {
            return None;
        }
        let rank = (total as f64 * part.clamp(0.0, 1.0)).max(f64::MIN_POSITIVE);
        let mut below = 0.0;
        for (bucket, count) in self.latency().iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= rank {
                let (from, to) = latency_bounds_us(bucket);
                let within = (rank - below) / count;
                return Some(from + ((to - from) as f64 * within) as u64);
            }
            below += count;
        }
        Some(latency_bounds_us(LATENCY_BUCKETS - 1).1)
    }
}

impl Default for CallCounts {
    fn default() -> Self {
        Self::ZERO
    }
}

impl AddAssign<&Self> for CallCounts {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(*more);
        }
    }
}

/// The bucket of a latency. The first bucket holds latencies below 128 µs, the second those below 256 µs. After that
/// each doubling has two buckets. The last bucket holds all latencies from 6.3 s on.
#[inline]
pub const fn latency_bucket(us: u64) -> usize {
    let us = us >> SHORTEST_BITS;
    if us == 0 {
        return 0;
    }
    let doubling = us.ilog2() as usize;
    // In the second half of a doubling, the next bit is set.
    let upper = if doubling == 0 { 0 } else { (us >> (doubling - 1)) as usize & 1 };
    let bucket = match doubling {
        0 => 1,
        _ => doubling * 2 + upper,
    };
    if bucket < LATENCY_BUCKETS { bucket } else { LATENCY_BUCKETS - 1 }
}

/// Base-2 logarithm of the upper bound of the first bucket, in microseconds.
const SHORTEST_BITS: u32 = 7;

/// The lower and the exclusive upper bound of a bucket, in microseconds. The last bucket ends at twice its lower
/// bound.
pub const fn latency_bounds_us(bucket: usize) -> (u64, u64) {
    let from = lower_us(bucket);
    let to = if bucket + 1 < LATENCY_BUCKETS { lower_us(bucket + 1) } else { from * 2 };
    (from, to)
}

const fn lower_us(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        1 => 1 << SHORTEST_BITS,
        _ => {
            let doubling = 1 << (bucket / 2);
            (doubling + (bucket as u64 % 2) * doubling / 2) << SHORTEST_BITS
        }
    }
}

/// Denied calls that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeniedPath {
    /// The called service.
    pub service: ServiceName,
    /// SPIFFE id of the caller, or `(other)` for callers beyond the number that a server distinguishes; `None`
    /// without an identity.
    pub caller: Option<String>,
    /// The rule that denies the call; `None` if no rule allows it.
    pub rule: Option<Label>,
    /// Whether the call was allowed anyway, since the rules are only audited.
    pub is_audit: bool,
    /// HTTP method of the call, or `OTHER`; empty for a connection, and for a report of the previous release.
    pub method: String,
    /// Path of the call, in which segments that may be ids are `*`, or `(other)`; empty as the method is.
    pub path: String,
}

/// The counts of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountedInterval {
    /// Time since the end of the interval, at the time of sending.
    pub age: Duration,
    /// Length of the interval.
    pub span: Duration,
    /// Calls by path. A known path without calls has a row of zeros; a path without a row is unknown.
    pub calls: BTreeMap<CountedPath, CallCounts>,
    /// Calls that the rules do not allow.
    pub denied: BTreeMap<DeniedPath, u64>,
    /// CPU of servers, in microseconds.
    pub cpu: BTreeMap<CpuPath, u64>,
}

/// Counts since the last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountReport {
    /// A random number of the process.
    pub reporter: u64,
    /// Number of the report. A report with the same number as the last one is a repetition.
    pub number: u64,
    /// The intervals, each with its rows.
    pub intervals: Vec<CountedInterval>,
    /// Number of rows that were dropped for lack of room.
    pub left_out: u64,
}

impl CountedInterval {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.calls.len() + self.denied.len() + self.cpu.len()
    }

    /// Adds the rows of another interval.
    pub fn add(&mut self, other: Self) {
        for (path, counts) in other.calls {
            *self.calls.entry(path).or_default() += &counts;
        }
        for (path, count) in other.denied {
            let sum = self.denied.entry(path).or_default();
            *sum = sum.saturating_add(count);
        }
        for (path, cpu_us) in other.cpu {
            let sum = self.cpu.entry(path).or_default();
            *sum = sum.saturating_add(cpu_us);
        }
    }
}

impl CountReport {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.intervals.iter().map(CountedInterval::rows).sum()
    }

    /// The services in the rows.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.intervals.iter().flat_map(|interval| {
            let calls = interval.calls.keys().flat_map(|path| iter::once(&path.service).chain(&path.caller));
            let denied = interval.denied.keys().map(|path| &path.service);
            calls.chain(denied).chain(interval.cpu.keys().map(|path| &path.service))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_buckets_are_adjacent_and_contain_their_bounds() {
        for bucket in 0..LATENCY_BUCKETS {
            let (from, to) = latency_bounds_us(bucket);
            assert!(from < to, "{bucket}");
            assert_eq!([from, to - 1].map(latency_bucket), [bucket; 2]);
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
        assert!(latency_bounds_us(LATENCY_BUCKETS - 1).0 > 4_000_000);
    }

    #[test]
    fn parts_taken_from_call_counts_add_up_to_whole() {
        let whole = CallCounts::from_values(std::array::from_fn(|i| i as u64 * 7 + 1));
        let (mut rest, mut sum) = (whole.clone(), CallCounts::ZERO);
        for (part, of) in [(1, 3), (1, 2)] {
            sum += &rest.take_part(part, of);
        }
        sum += &rest;
        assert_eq!(sum, whole);
    }

    #[test]
    fn latency_quantile_is_in_bucket_of_its_rank() {
        let mut latency = [0; LATENCY_BUCKETS];
        (latency[latency_bucket(1_000)], latency[latency_bucket(900_000)]) = (98, 2);
        let counts = CallCounts::ZERO.with_outcomes(&[], &[], &latency);
        let at = |part| counts.latency_quantile_us(part).map(latency_bucket);
        assert_eq!(at(0.5), Some(latency_bucket(1_000)));
        assert_eq!(at(0.99), Some(latency_bucket(900_000)));
        assert_eq!(CallCounts::ZERO.latency_quantile_us(0.99), None);
    }

    #[test]
    fn call_outcomes_of_later_release_count_as_unknown() {
        let responses = [0, 1, 0, 0, 0, 0, 0, 4];
        let faults: Vec<u64> =
            (0..=CallFault::ALL.len()).map(|i| u64::from(i == CallFault::ALL.len())).collect();
        let counts = CallCounts::ZERO.with_outcomes(&responses, &faults, &[0; LATENCY_BUCKETS + 1]);
        assert_eq!((counts.responses()[0], counts.responses()[1], counts.faults()[0]), (4, 1, 1));
        assert_eq!(counts.failures(), 1);
    }

    #[test]
    fn call_outcome_enums_are_in_order_of_wire_numbers() {
        assert!(ResponseClass::ALL.iter().enumerate().all(|(i, class)| *class as usize == i));
        assert!(CallFault::ALL.iter().enumerate().all(|(i, fault)| *fault as usize == i));
    }
}
