use std::{sync::Arc, time::Duration};

use fairmesh_model::{Retries, arith::mix64};
use fairmesh_router::{
    Ask, EndpointTarget, Headers, LoadReport, Outcome, Picked, RequestView, Unroutable, Upstream,
};

use super::{CallContext, Clock, Lane, Ready, Subscription, View, clock::nanos};
use crate::{Fault, FaultKind};

/// Tries of one call that are told apart; a policy allows ten, and two more may go to a wrong shard.
const MOST_TRIES: usize = 12;
/// How often a call may find that a server does not hold its shard (S12).
const WRONG_SHARD_TRIES: u32 = 2;
/// The first wait before a retry is drawn from 0 to this; it doubles with every try.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// One call, from its route to its last try.
#[derive(Debug)]
pub struct Call<L> {
    /// Who gets the call: the service asked for, or an arm of its route's split.
    target: Arc<Subscription<L>>,
    /// Whose budget pays for retries.
    asked: Arc<Subscription<L>>,
    retries: Retries,
    idempotent: bool,
    deadline: u64,
    tried: [u32; MOST_TRIES],
    tries: usize,
    wrong_shard: u32,
}

/// One try: an endpoint that has one more call outstanding until this is dropped, whatever becomes of the call.
#[derive(Debug)]
pub struct Try<L> {
    view: Arc<View<L>>,
    picked: Picked,
    clock: Clock,
    outcome: Outcome,
}

/// Why no try can begin.
#[derive(Debug)]
pub enum Undecided<L> {
    /// This service's view may change soon: wait for a newer one.
    Waiting(Arc<Subscription<L>>, Arc<View<L>>),
    /// The call is over.
    Fault(Fault),
}

/// How one try ended, as far as retries care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an answer that the caller gets.
    Answered,
    /// With an answer that says that the server cannot serve now: 503, `UNAVAILABLE`.
    Busy,
    /// With an answer that says that the server, which knows this version of the map, does not hold the shard.
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
    /// The deadline passed.
    Late,
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
            Self::Answered | Self::WrongShard { .. } | Self::Stale => Outcome::Ok,
            Self::Busy | Self::Refused | Self::Broken => Outcome::Failed,
            Self::Unreachable | Self::Late => Outcome::Unreachable,
        }
    }
}

impl<L: Lane> Call<L> {
    /// Routes a call that began at `started`. `limit` is what the caller's own deadline leaves.
    pub fn begin<H: Headers + ?Sized>(
        asked: &Arc<Subscription<L>>,
        ready: &Ready<L>,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: Start,
    ) -> Self {
        let routed = ready.upstream.route(request, start.seed);
        let target = match routed.target == asked.name() {
            true => asked,
            false => ready.split(routed.target).unwrap_or(asked),
        };
        let limits = [context.timeout, start.limit];
        let timeout = limits.into_iter().flatten().fold(routed.timeout, Duration::min);
        let retries = ready.upstream.policy().retries.clone();
        asked.budget.deposit(&retries);
        Self {
            target: Arc::clone(target),
            asked: Arc::clone(asked),
            idempotent: context.idempotent || routed.idempotent || is_idempotent(request),
            retries,
            deadline: start.now.saturating_add(nanos(timeout)),
            tried: [0; MOST_TRIES],
            tries: 0,
            wrong_shard: 0,
        }
    }

    /// Chooses the endpoint of the next try and counts it there.
    pub fn decide(&mut self, context: &CallContext, at: Moment) -> Result<Try<L>, Undecided<L>> {
        let view = self.target.view();
        let View::Ready(ready) = &*view else {
            return Err(match no_view(&self.target, &view) {
                Some(fault) => Undecided::Fault(fault),
                None => Undecided::Waiting(Arc::clone(&self.target), view),
            });
        };
        let avoid = &self.tried[..self.tries];
        let ask = Ask { key: context.key, role: context.role.as_ref(), avoid };
        match ready.upstream.pick(&ask, at.now, at.seed) {
            Ok(picked) => {
                ready.upstream.begin(picked.index);
                if let Some(place) = self.tried.get_mut(self.tries) {
                    *place = picked.index;
                    self.tries += 1;
                }
                Ok(Try { view, picked, clock: at.clock, outcome: Outcome::Ok })
            }
            Err(unroutable) => Err(Undecided::Fault(unroutable_fault(&self.target, &unroutable))),
        }
    }

    /// Learns how a try ended and says what comes next. A retry that is granted is paid for.
    pub fn finish(&mut self, attempt: &mut Try<L>, ending: Ending, seed: u64) -> Next {
        attempt.outcome = ending.outcome();
        if matches!(ending, Ending::Answered | Ending::Late) {
            return Next::Done;
        }
        let now = attempt.clock.now();
        let again = match ending {
            Ending::WrongShard { version } => return self.refresh(version, attempt.picked.map_version, now),
            Ending::Busy | Ending::Broken => self.idempotent,
            _ => true,
        };
        let made = self.tries.saturating_sub(self.wrong_shard as usize);
        if !again || made >= self.retries.attempts as usize {
            return Next::Done;
        }
        let after = match ending {
            // Another endpoint is as good as this one was: no reason to wait for it.
            Ending::Stale | Ending::Unreachable if made == 1 => Duration::ZERO,
            _ => self.wait(made, seed),
        };
        if self.left(now) <= after {
            return Next::Done;
        }
        if ending != Ending::Stale && !self.asked.budget.withdraw(&self.retries, now) {
            return Next::Exhausted;
        }
        Next::Retry { after }
    }

    /// When the call must be over, in nanoseconds of the clock.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// The time that is left.
    pub fn left(&self, now: u64) -> Duration {
        Duration::from_nanos(self.deadline.saturating_sub(now))
    }

    /// Who gets the call.
    pub fn target(&self) -> &Arc<Subscription<L>> {
        &self.target
    }

    /// Whether a try that was sent may be followed by another, so that a transport has to keep a copy of the request.
    /// `refusable`: whether the transport's protocol lets a server refuse unseen what was sent, as HTTP/2 does.
    pub fn may_be_sent_twice(&self, context: &CallContext, refusable: bool) -> bool {
        context.key.is_some() || (self.retries.attempts > 1 && (self.idempotent || refusable))
    }

    fn refresh(&mut self, version: u64, used: u64, now: u64) -> Next {
        self.wrong_shard += 1;
        // A server that knows an older map than this caller is itself about to learn: give it a moment.
        let wait = if version > used { Duration::from_millis(500) } else { Duration::from_millis(20) };
        let at_most = wait.min(self.left(now) / 2);
        match self.wrong_shard <= WRONG_SHARD_TRIES && !at_most.is_zero() {
            true => Next::Refresh { version: version.max(used + 1), at_most },
            false => Next::Done,
        }
    }

    fn wait(&self, made: usize, seed: u64) -> Duration {
        let longest = nanos(FIRST_WAIT) << made.saturating_sub(1).min(5);
        Duration::from_nanos(mix64(seed) % longest)
    }
}

/// When and with which chance a try is decided.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The clock, read again when the try ends.
    pub clock: Clock,
    /// Its time now, in nanoseconds.
    pub now: u64,
    /// Chance, fresh for each try.
    pub seed: u64,
}

/// When and with what a call begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// When, in nanoseconds of the clock.
    pub now: u64,
    /// What the caller's own deadline leaves, where it has one.
    pub limit: Option<Duration>,
    /// Chance, fresh for each call.
    pub seed: u64,
}

impl<L: Lane> Try<L> {
    /// The snapshot that chose.
    pub fn upstream(&self) -> &Upstream {
        &self.ready().upstream
    }

    /// The endpoint.
    pub fn target(&self) -> &Arc<EndpointTarget> {
        self.upstream().target(self.picked.index)
    }

    /// The choice.
    pub fn picked(&self) -> &Picked {
        &self.picked
    }

    /// The transport's lane to the endpoint.
    pub fn lane(&self, shared: &L::Shared) -> Arc<L> {
        self.ready().lane(self.picked.index, shared)
    }

    /// Keeps what the answer says of the endpoint's load, from now on.
    #[inline]
    pub fn report(&self, load: LoadReport) {
        self.upstream().report(self.picked.index, load, self.clock.now());
    }

    /// Learns how it ended, where no retry is possible.
    pub fn ended(&mut self, ending: Ending) {
        self.outcome = ending.outcome();
    }

    /// Learns that the answer broke off after it had begun.
    pub fn failed(&mut self) {
        self.outcome = Outcome::Failed;
    }

    fn ready(&self) -> &Ready<L> {
        match &*self.view {
            View::Ready(ready) => ready,
            // `decide` makes a try of a ready view only, and a view never changes.
            _ => unreachable!("a try rests on a ready view"),
        }
    }
}

impl<L> Drop for Try<L> {
    fn drop(&mut self) {
        if let View::Ready(ready) = &*self.view {
            // Only a penalty has a time, and reading the clock costs as much as the rest.
            let now = if self.outcome == Outcome::Ok { 0 } else { self.clock.now() };
            ready.upstream.finish(self.picked.index, self.outcome, now);
        }
    }
}

/// Why a view decides nothing, or `None` when it may soon.
pub fn no_view<L>(service: &Subscription<L>, view: &View<L>) -> Option<Fault> {
    let name = service.name();
    match view {
        View::Ready(_) | View::Waiting => None,
        View::Unknown => Some(Fault::new(
            FaultKind::UnknownService,
            format!(
                "nobody declared the service {name}; see the names with `fairmesh get services`, or apply it"
            ),
        )),
        View::Unavailable(why) => Some(Fault::new(FaultKind::Unavailable, format!("{name}: {why}"))),
    }
}

fn unroutable_fault<L>(service: &Subscription<L>, why: &Unroutable) -> Fault {
    let kind = match why {
        Unroutable::NoEndpoints | Unroutable::NoneInRegion { .. } => FaultKind::NoEndpoints,
        Unroutable::KeyMissing => FaultKind::KeyMissing,
        Unroutable::KeyOutside { .. } => FaultKind::KeyOutside,
        Unroutable::NoReplica { .. } | Unroutable::NoShardMap => FaultKind::NoReplica,
    };
    Fault::new(kind, format!("{}: {why}", service.name()))
}

/// Whether the method itself promises that repeating it does no harm (RFC 9110 9.2.2). gRPC sends everything as POST.
fn is_idempotent<H: Headers + ?Sized>(request: &RequestView<'_, H>) -> bool {
    !request.grpc && matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}
