//! Counts of calls for views of the mesh: who calls whom, how well, and how much.
//!
//! A report has what was counted since the last one, with a number, and is sent again until it is acknowledged: each call is
//! counted once. Rates, which planners get ([`TrafficReport`](super::TrafficReport)), were rejected here. A sum of rates over
//! time misses an interval with each lost report, so that callers and servers would never agree.

use std::{collections::BTreeMap, iter, ops::AddAssign, time::Duration};

use super::attributed_cpu::CpuPath;
use crate::{Label, Region, ServiceName, Zone};

/// The most rows of one [`CountReport`].
pub const MAX_COUNT_ROWS: usize = 4_096;
/// The most intervals of one [`CountReport`].
pub const MAX_COUNT_INTERVALS: usize = 64;
/// The longest text of a caller in [`DeniedPath`], in bytes.
pub const MAX_DENIED_CALLER: usize = 512;
/// The number of latency buckets of [`CallCounts`].
pub const LATENCY_BUCKETS: usize = 32;

/// Who counted a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CountedBy {
    /// The caller: its library, its proxy, or the lookaside that picked for it.
    #[default]
    Caller,
    /// The server.
    Server,
}

/// Calls that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountedPath {
    /// The called service. A backend of a route is a service of its own.
    pub service: ServiceName,
    /// The calling service, if known. Servers know it by its certificate.
    pub caller: Option<ServiceName>,
    /// Who counted them.
    pub by: CountedBy,
    /// The traffic class that the route sets.
    pub class: Option<Label>,
    /// The region of the callers; `None` where the server does not know it.
    pub from: Option<Region>,
    /// The region of the servers; `None` if no server was picked.
    pub to: Option<Region>,
    /// The callers' zone, for services that prefer zones.
    pub from_zone: Option<Zone>,
    /// The servers' zone, for services that prefer zones.
    pub to_zone: Option<Zone>,
}

/// Responses by class. A gRPC response counts by its gRPC status and not by its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseClass {
    /// Not known: a caller of a lookaside made the call.
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

/// Why a call had no response of its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// Not known: a caller of a lookaside made the call, or a later release names it.
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
    /// All classes, in the order of their numbers in messages.
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

    /// The class of a gRPC response by whether its status is 0.
    #[inline]
    pub const fn of_grpc(is_ok: bool) -> Self {
        if is_ok { Self::GrpcOk } else { Self::GrpcError }
    }

    /// The name for people and JSON.
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
    /// All faults, in the order of their numbers in messages.
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

    /// The name for people and JSON, the same as in metrics and `x-fairmesh-fault`.
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

/// What is counted of calls. Each call is one of [`calls`](Self::calls), and when it ends one of the
/// [`responses`](Self::responses) or [`faults`](Self::faults), unless its caller gave up.
///
/// The numbers are one array, so that sums, differences and encodings have no list of fields to keep complete.
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
    /// The number of numbers.
    pub const LEN: usize = Self::LATENCY + LATENCY_BUCKETS;

    /// Counts of nothing.
    pub const ZERO: Self = Self([0; Self::LEN]);

    /// The counts with these numbers, see [`Self::values`].
    pub const fn from_values(values: [u64; Self::LEN]) -> Self {
        Self(values)
    }

    /// All numbers in a fixed order: those of the methods below.
    pub const fn values(&self) -> &[u64; Self::LEN] {
        &self.0
    }

    /// Calls, each once however often it was attempted.
    pub const fn calls(&self) -> u64 {
        self.0[Self::CALLS]
    }

    /// Attempts after the first one of their call, hedged attempts included.
    pub const fn retries(&self) -> u64 {
        self.0[Self::RETRIES]
    }

    /// Time until responses began, in microseconds, over all attempts with one.
    pub const fn time_us(&self) -> u64 {
        self.0[Self::TIME_US]
    }

    /// Bytes of the bodies of requests.
    pub const fn request_bytes(&self) -> u64 {
        self.0[Self::REQUEST_BYTES]
    }

    /// Bytes of the bodies of responses.
    pub const fn response_bytes(&self) -> u64 {
        self.0[Self::RESPONSE_BYTES]
    }

    /// Final responses, in the order of [`ResponseClass::ALL`].
    pub fn responses(&self) -> &[u64] {
        &self.0[Self::RESPONSES..Self::FAULTS]
    }

    /// Calls without a response, in the order of [`CallFault::ALL`].
    pub fn faults(&self) -> &[u64] {
        &self.0[Self::FAULTS..Self::LATENCY]
    }

    /// Attempts with a response by latency, see [`latency_bucket`].
    pub fn latency(&self) -> &[u64] {
        &self.0[Self::LATENCY..]
    }

    /// Sets the calls, retries, microseconds, bytes of requests and bytes of responses.
    #[must_use]
    pub const fn with_totals(mut self, totals: [u64; 5]) -> Self {
        let mut i = 0;
        while i < totals.len() {
            self.0[i] = totals[i];
            i += 1;
        }
        self
    }

    /// Sets responses, faults and latencies. Numbers beyond the known ones count as unknown, and as the longest latency.
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

    /// Responses that are failures of the server (5xx, gRPC errors), and all faults.
    pub fn failures(&self) -> u64 {
        let failed = [ResponseClass::ServerError, ResponseClass::GrpcError];
        let responses = failed.into_iter().map(|class| self.responses()[class as usize]);
        responses.chain(self.faults().iter().copied()).fold(0, u64::saturating_add)
    }

    /// The sum of two counts.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self += other;
        self
    }

    /// What was counted since `before`. A number that decreased was counted anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].checked_sub(before.0[i]).unwrap_or(self.0[i])))
    }

    /// Takes `part` of `whole` out of the counts, rounded down. The rest stays, so that no call is lost or made by a division.
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

    /// The latency that this part of responses did not exceed, in microseconds, interpolated within its bucket; `None`
    /// without responses. `part` is from 0 to 1.
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

/// The bucket of a latency. The first has all below 128 µs, the second all below 256 µs. After that each doubling has two
/// buckets, and the last one has all from 6.3 s on.
#[inline]
pub const fn latency_bucket(us: u64) -> usize {
    let us = us >> SHORTEST_BITS;
    if us == 0 {
        return 0;
    }
    let doubling = us.ilog2() as usize;
    // The second half of the doubling has the next bit set.
    let upper = if doubling == 0 { 0 } else { (us >> (doubling - 1)) as usize & 1 };
    let bucket = match doubling {
        0 => 1,
        _ => doubling * 2 + upper,
    };
    if bucket < LATENCY_BUCKETS { bucket } else { LATENCY_BUCKETS - 1 }
}

/// Latencies below 2 to this power of microseconds share the first bucket.
const SHORTEST_BITS: u32 = 7;

/// The bounds of a bucket in microseconds, lower and upper; the upper bound is exclusive. The last bucket ends at twice
/// its lower bound.
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

/// Calls that the rules of a service do not allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeniedPath {
    /// The called service.
    pub service: ServiceName,
    /// SPIFFE id of the caller, or `(other)` beyond the most that a server tells apart; `None` without an identity.
    pub caller: Option<String>,
    /// The rule that denies the call; `None` if no rule allows it.
    pub rule: Option<Label>,
    /// Whether the call was let through, since the rules are audited only.
    pub is_audit: bool,
}

/// What was counted in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountedInterval {
    /// Time since the interval ended, when the report was sent.
    pub age: Duration,
    /// Its length.
    pub span: Duration,
    /// Calls. A path without calls in the interval has zeros: a path without a row is not known.
    pub calls: BTreeMap<CountedPath, CallCounts>,
    /// Calls that rules do not allow.
    pub denied: BTreeMap<DeniedPath, u64>,
    /// CPU of servers, in microseconds.
    pub cpu: BTreeMap<CpuPath, u64>,
}

/// What was counted since the last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountReport {
    /// A random number of the process.
    pub reporter: u64,
    /// Number of the report. A report with the number of the last one is a repetition.
    pub number: u64,
    /// The intervals, each with its rows.
    pub intervals: Vec<CountedInterval>,
    /// Rows that had no room.
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

    /// The services that its rows name.
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
    fn latency_buckets_are_adjacent_and_hold_their_bounds() {
        for bucket in 0..LATENCY_BUCKETS {
            let (from, to) = latency_bounds_us(bucket);
            assert!(from < to, "{bucket}");
            assert_eq!([from, to - 1].map(latency_bucket), [bucket; 2]);
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
        assert!(latency_bounds_us(LATENCY_BUCKETS - 1).0 > 4_000_000);
    }

    #[test]
    fn parts_of_counts_add_up_to_the_whole() {
        let whole = CallCounts::from_values(std::array::from_fn(|i| i as u64 * 7 + 1));
        let (mut rest, mut sum) = (whole.clone(), CallCounts::ZERO);
        for (part, of) in [(1, 3), (1, 2)] {
            sum += &rest.take_part(part, of);
        }
        sum += &rest;
        assert_eq!(sum, whole);
    }

    #[test]
    fn quantile_lies_in_the_bucket_of_its_rank() {
        let mut latency = [0; LATENCY_BUCKETS];
        (latency[latency_bucket(1_000)], latency[latency_bucket(900_000)]) = (98, 2);
        let counts = CallCounts::ZERO.with_outcomes(&[], &[], &latency);
        let at = |part| counts.latency_quantile_us(part).map(latency_bucket);
        assert_eq!(at(0.5), Some(latency_bucket(1_000)));
        assert_eq!(at(0.99), Some(latency_bucket(900_000)));
        assert_eq!(CallCounts::ZERO.latency_quantile_us(0.99), None);
    }

    #[test]
    fn numbers_of_a_later_release_count_as_unknown() {
        let responses = [0, 1, 0, 0, 0, 0, 0, 4];
        let faults: Vec<u64> =
            (0..=CallFault::ALL.len()).map(|i| u64::from(i == CallFault::ALL.len())).collect();
        let counts = CallCounts::ZERO.with_outcomes(&responses, &faults, &[0; LATENCY_BUCKETS + 1]);
        assert_eq!((counts.responses()[0], counts.responses()[1], counts.faults()[0]), (4, 1, 1));
        assert_eq!(counts.failures(), 1);
    }

    #[test]
    fn enumerations_are_in_the_order_of_their_numbers() {
        assert!(ResponseClass::ALL.iter().enumerate().all(|(i, class)| *class as usize == i));
        assert!(CallFault::ALL.iter().enumerate().all(|(i, fault)| *fault as usize == i));
    }
}
