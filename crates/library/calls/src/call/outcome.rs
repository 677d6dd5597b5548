use std::time::Duration;

use fairmesh_router::Outcome;

/// How one attempt ended, in the detail that retries depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// A response that the caller receives.
    Responded,
    /// The server itself failed (500, `INTERNAL`), and the caller receives this response. A separate outcome matters
    /// because a server that fails immediately would otherwise look idle.
    ServerError,
    /// The server responded that it is unavailable now: 503, `UNAVAILABLE`.
    Unavailable,
    /// The server responded that it is at its concurrency limit and did not process this call.
    Overloaded,
    /// The server responded that it does not hold the shard. If the attempt was not routed by shard, the server relays
    /// the response of another server, and the outcome equals [`AttemptOutcome::Responded`].
    WrongShard {
        /// Version of the shard map that the server knows.
        version: u64,
    },
    /// No connection could be opened, so nothing was sent.
    Unreachable,
    /// The server refused the request without processing it, for example with `REFUSED_STREAM`.
    Refused,
    /// The connection was closing before the server read the request. This is neither a failure nor load on the server.
    Stale,
    /// The connection broke after the request was sent; the server may have processed it.
    Reset,
    /// The deadline passed while the request was in flight.
    DeadlineExceeded,
    /// The timeout of one attempt passed while the request was in flight.
    TimedOut,
    /// No connection was opened within the part of the remaining time that an attempt may spend on connecting.
    /// Nothing was sent.
    ConnectTimedOut,
    /// The caller's request or its body failed. This says nothing about the server.
    CallerFailed,
    /// The server rejected the request as malformed. A server that rejects every request is at fault itself.
    Rejected,
}

/// The decision after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// No retry: the caller gets the result of this attempt.
    Done,
    /// Make another attempt.
    Retry {
        /// Backoff before the attempt.
        after: Duration,
    },
    /// Make another attempt as soon as the shard map has reached this version.
    AwaitMap {
        /// Version of the shard map that the server knew.
        version: u64,
        /// Maximum wait. Afterwards the attempt uses the available map.
        at_most: Duration,
    },
    /// No retry, like [`RetryDecision::Done`], because the retry budget is exhausted.
    BudgetExhausted,
}

impl AttemptOutcome {
    /// Returns the outcome for the endpoint's statistics.
    pub(super) fn for_endpoint(self) -> Outcome {
        match self {
            Self::Responded | Self::WrongShard { .. } => Outcome::Ok,
            Self::Stale | Self::CallerFailed => Outcome::Unknown,
            // A call with too little time must not shift all other calls to the next region.
            Self::ServerError
            | Self::Unavailable
            | Self::Refused
            | Self::Reset
            | Self::DeadlineExceeded
            | Self::TimedOut
            | Self::ConnectTimedOut
            | Self::Rejected => Outcome::Failed,
            Self::Overloaded => Outcome::Overloaded,
            Self::Unreachable => Outcome::Unreachable,
        }
    }
}
