use std::time::Duration;

use fairmesh_router::Outcome;

/// How one attempt ended, as far as retries depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// A response for the caller.
    Responded,
    /// A response for the caller that reports a failure of the server itself: 500, `INTERNAL`. Without this a server
    /// that fails immediately would look idle.
    ServerError,
    /// A response that the server is unavailable now: 503, `UNAVAILABLE`.
    Unavailable,
    /// A response that the server is at its concurrency limit and has not processed this call.
    Overloaded,
    /// A response that the server, which knows this version of the shard map, does not hold the shard. Where the
    /// attempt was not routed by shard, the server relays the response of another one, and this is the same as
    /// [`AttemptOutcome::Responded`].
    WrongShard {
        /// The version.
        version: u64,
    },
    /// No connection: nothing was sent.
    Unreachable,
    /// The server refused the request without processing it, for example with `REFUSED_STREAM`.
    Refused,
    /// The connection was closing before the server read the request: not a failure, and no load on any server.
    Stale,
    /// The connection broke after the request was sent; the server may have processed it.
    Reset,
    /// The deadline passed while the request was in flight.
    DeadlineExceeded,
    /// The timeout of one attempt passed while the request was in flight.
    TimedOut,
    /// No connection within the part of the remaining time that an attempt gets for one: nothing was sent.
    ConnectTimedOut,
    /// The caller's request or its body failed: no statement about the server.
    CallerFailed,
    /// The server rejected the request as malformed. A server that rejects each request is at fault itself.
    Rejected,
}

/// The step after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// No retry: the caller gets the result of this attempt.
    Done,
    /// Another attempt.
    Retry {
        /// The backoff before it.
        after: Duration,
    },
    /// Another attempt as soon as the shard map has reached this version.
    AwaitMap {
        /// The version that the server knew.
        version: u64,
        /// After this time the attempt goes by the map at hand.
        at_most: Duration,
    },
    /// As [`RetryDecision::Done`], because the retry budget is exhausted.
    BudgetExhausted,
}

impl AttemptOutcome {
    /// The outcome that the endpoint's statistics record.
    pub(super) fn for_endpoint(self) -> Outcome {
        match self {
            Self::Responded | Self::WrongShard { .. } => Outcome::Ok,
            Self::Stale | Self::CallerFailed => Outcome::Unknown,
            // A call with too little time must not shift all others to the next region.
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
