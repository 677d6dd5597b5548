use std::{sync::Arc, time::Duration};

use fairmesh_router::{EndpointTarget, Held, LoadReport, Outcome, Picked};

use crate::core::{Clock, Lane, Ready, View};

/// One try: an endpoint that has one more call outstanding until this is dropped, whatever becomes of the call.
#[derive(Debug)]
pub struct Try<L> {
    ground: Ground<L>,
    picked: Picked,
    clock: Clock,
    outcome: Outcome,
}

/// What a try keeps of what was known.
#[derive(Debug)]
enum Ground<L> {
    /// All of it: a ready view.
    View(Arc<View<L>>),
    /// Its endpoint only.
    Held(Held),
}

/// How one try ended, as far as retries care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer that the caller gets.
    Answered,
    /// With an answer that says that the server cannot serve now: 503, `UNAVAILABLE`.
    Busy,
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
    fn outcome(self) -> Outcome {
        match self {
            Self::Answered | Self::WrongShard { .. } => Outcome::Ok,
            Self::Stale | Self::Abandoned => Outcome::Unknown,
            // One call that had too little time must not send all others to the next region.
            Self::Busy | Self::Refused | Self::Broken | Self::Late | Self::Unsent => Outcome::Failed,
            Self::Unreachable => Outcome::Unreachable,
        }
    }
}

impl<L: Lane> Try<L> {
    /// Counts the try where `view`, which must be ready, chose.
    #[inline]
    pub(super) fn begin(view: Arc<View<L>>, picked: Picked, clock: Clock) -> Self {
        if let View::Ready(ready) = &*view {
            ready.upstream.begin(picked.index);
        }
        Self { ground: Ground::View(view), picked, clock, outcome: Outcome::Unknown }
    }

    /// The clock that the try goes by.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// The endpoint.
    pub fn target(&self) -> &Arc<EndpointTarget> {
        match &self.ground {
            Ground::View(view) => ready(view).upstream.target(self.picked.index),
            Ground::Held(held) => held.target(),
        }
    }

    /// The choice.
    pub fn picked(&self) -> &Picked {
        &self.picked
    }

    /// The transport's lane to the endpoint; to be asked before the try [lasts](Self::lasts).
    ///
    /// # Panics
    /// After that.
    pub fn lane(&self, shared: &L::Shared) -> Arc<L> {
        match &self.ground {
            Ground::View(view) => ready(view).lane(self.picked.index, shared),
            Ground::Held(_) => panic!("a try that lasts has left its lane behind"),
        }
    }

    /// Lets go of the snapshot that chose, since the try may last longer than many of them.
    #[cold]
    pub fn lasts(&mut self) {
        if let Ground::View(view) = &self.ground {
            self.ground = Ground::Held(ready(view).upstream.hold(self.picked.index));
        }
    }

    /// Keeps what the answer says of the endpoint's load, from now on.
    #[inline]
    pub fn report(&self, load: LoadReport) {
        let now = self.clock.now();
        match &self.ground {
            Ground::View(view) => ready(view).upstream.report(self.picked.index, load, now),
            Ground::Held(held) => held.report(load, now),
        }
    }

    /// Learns how it ended, where no retry is possible.
    pub fn ended(&mut self, ending: Ending) {
        self.outcome = ending.outcome();
    }

    /// Learns that the answer broke off after it had begun.
    pub fn failed(&mut self) {
        self.outcome = Outcome::Failed;
    }
}

fn ready<L>(view: &View<L>) -> &Ready<L> {
    match view {
        View::Ready(ready) => ready,
        // `decide` makes a try of a ready view only, and a view never changes.
        _ => unreachable!("a try rests on a ready view"),
    }
}

impl<L> Drop for Try<L> {
    fn drop(&mut self) {
        // Only a penalty has a time, and reading the clock costs as much as the rest.
        let now = match self.outcome {
            Outcome::Ok | Outcome::Unknown => 0,
            Outcome::Failed | Outcome::Unreachable => self.clock.now(),
        };
        match &self.ground {
            Ground::View(view) => ready(view).upstream.finish(self.picked.index, self.outcome, now),
            Ground::Held(held) => held.finish(self.outcome, now),
        }
    }
}
