use std::time::Duration;

use fairmesh_router::Outcome;

/// How one try ended, as far as retries care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer that the caller gets.
    Answered,
    /// With an answer that the caller gets, which is a failure of the server's own: 500, `INTERNAL`. A server that fails at
    /// once would else look idle.
    Erred,
    /// With an answer that says that the server cannot serve now: 503, `UNAVAILABLE`.
    Busy,
    /// With an answer that says that the server has as many calls as it takes at a time, and has not looked at this one.
    Full,
    /// With an answer that says that the server, which knows this version of the map, does not hold the shard. Where the
    /// try was not by shard, it is what the server itself was told by another one, and as [`Ending::Answered`].
    WrongShard {
        /// The version.
        version: u64,
    },
    /// No connection: nothing was sent.
    Unreachable,
    /// The server refused to look at it, such as `REFUSED_STREAM`.
    Refused,
    /// The connection was closing, and the server has not seen the request: nobody's fault, no load anywhere.
    Stale,
    /// The connection broke when the request may have been carried out.
    Broken,
    /// The deadline passed when the request was under way.
    Late,
    /// The time for one try ran out when the request was under way.
    Slow,
    /// No connection within the little time that there was for one: nothing was sent.
    Unsent,
    /// The caller's own request or its body failed: says nothing of the server.
    Abandoned,
}

/// What comes after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the caller gets what there is.
    Done,
    /// Another try.
    Retry {
        /// After this wait.
        after: Duration,
    },
    /// Another try, as soon as the shard map has reached this version.
    Refresh {
        /// The version that the server knew.
        version: u64,
        /// When to try whatever is known by then.
        at_most: Duration,
    },
    /// As [`Next::Done`], since the retry budget is used up.
    Exhausted,
}

impl Ending {
    /// What it says of the endpoint.
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Self::Answered | Self::WrongShard { .. } => Outcome::Ok,
            Self::Stale | Self::Abandoned => Outcome::Unknown,
            // One call that had too little time must not send all others to the next region.
            Self::Erred
            | Self::Busy
            | Self::Refused
            | Self::Broken
            | Self::Late
            | Self::Slow
            | Self::Unsent => Outcome::Failed,
            Self::Full => Outcome::Overloaded,
            Self::Unreachable => Outcome::Unreachable,
        }
    }
}
