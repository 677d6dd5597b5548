use std::{
    ptr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{CallKind, ShardKey, Timeouts, arith::mix64};
use fairmesh_router::{
    EndpointPick, Headers, Outcome, PickError, PickParams, RequestView, RouteActions, Step,
};
use hazarc::ArcBorrow;

pub use self::ending::{Ending, Next};
use super::{CallContext, Clock, Lane, Ready, Subscription, View, clock::nanos};
use crate::{Fault, FaultKind};

mod ending;

/// Tries of one call that are told apart; a policy allows ten, and two more may go to a wrong shard.
const MOST_TRIES: usize = 12;
/// How often a call may find that a server does not hold its shard (ServiceRouter §4.1).
const WRONG_SHARD_TRIES: u32 = 2;
/// The first wait before a retry is drawn from 0 to this; it doubles with every try.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The deadline of a call that has none, and the time of a wait that only the call bounds.
const NEVER: u64 = u64::MAX;
/// The longest that a call waits for what comes before its request, such as a connection, where it has no deadline.
pub const FIRST_CONTACT: Duration = Duration::from_secs(15);
/// How long a call goes on after a deadline that its server was sent as well, so that the server's own status comes first: this,
/// and a tenth of the time at most.
const GRACE: Duration = Duration::from_millis(50);

/// One call, from its route to its last try.
///
/// It is made once and filled in where it lies: moving what was just written, in pieces of another size, costs more than
/// deciding.
#[derive(Debug)]
pub struct Call<'a, L: Lane> {
    /// The service asked for, whose budget pays for retries.
    asked: &'a Arc<Subscription<L>>,
    /// Who gets the call instead: an arm of its route's split.
    elsewhere: Option<Arc<Subscription<L>>>,
    under_way: Option<Try>,
    /// In nanoseconds of the clock, or [`NEVER`].
    deadline: u64,
    /// Beyond the deadline, in nanoseconds.
    grace: u64,
    /// From the end of the request to the response headers, in nanoseconds, or [`NEVER`].
    response_header: u64,
    /// For which nothing may move in the middle of a body, in nanoseconds, or [`NEVER`].
    idle: u64,
    /// Whether its response may turn out to be a stream of events, which may be silent for longer.
    may_be_events: bool,
    /// Whether its caller waits for a stream, although it is no gRPC call by its headers.
    is_stream: bool,
    /// What its route does with it.
    treatment: Option<Arc<RouteActions>>,
    /// The key that the policy reads in the request, where the caller names none.
    key: Option<ShardKey>,
    idempotent: bool,
    wrong_shard: u32,
    tries: usize,
    tried: [u32; MOST_TRIES],
}

/// One try: its endpoint has one more call outstanding.
#[derive(Debug)]
struct Try {
    picked: EndpointPick,
    clock: Clock,
    outcome: Outcome,
}

/// What is known of the service that gets the call, held for a moment: handed from step to step and never kept in the
/// call, since what is written in two halves and read as one costs more than either.
pub type Sight<L> = ArcBorrow<View<L>>;

/// The endpoint of a try and the snapshot that it was chosen by: to be let go before the call waits for anything.
#[derive(Debug)]
pub struct Chosen<L> {
    index: u32,
    by: Sight<L>,
}

impl<L: Lane> Chosen<L> {
    /// The revision of the RIB that it was chosen by.
    pub(crate) fn revision(&self) -> u64 {
        match &**self.by {
            View::Ready(ready) => ready.revision,
            _ => 0,
        }
    }

    /// The transport's lane to the endpoint; `shared` is for one that has to be opened.
    #[inline]
    pub fn lane(&self, shared: &L::Shared) -> L {
        match &**self.by {
            View::Ready(ready) => ready.lane(self.index, shared),
            // Nothing else chooses.
            _ => unreachable!("only a ready view chooses"),
        }
    }
}

/// Why no try can begin. It travels in a box, so that what is usual comes back in registers.
#[derive(Debug)]
pub enum Undecided<L> {
    /// This service's view may change soon: wait for a newer one.
    Waiting(Arc<Subscription<L>>, Arc<View<L>>),
    /// The call is over.
    Fault(Fault),
}

impl<'a, L: Lane> Call<'a, L> {
    /// A call to a service, yet to be [routed](Self::route).
    #[inline]
    pub fn new(asked: &'a Arc<Subscription<L>>) -> Self {
        Self {
            asked,
            elsewhere: None,
            under_way: None,
            deadline: NEVER,
            grace: 0,
            response_header: NEVER,
            idle: NEVER,
            may_be_events: false,
            is_stream: false,
            treatment: None,
            key: None,
            idempotent: false,
            wrong_shard: 0,
            tries: 0,
            tried: [0; MOST_TRIES],
        }
    }

    /// Finds its route, and with it who gets the call and how long it may take. The first try is to be decided by what
    /// comes back.
    ///
    /// # Errors
    /// While nothing is known of the service; try again with the same start once there is. And where a limit lets no more
    /// calls through.
    #[inline]
    pub fn route<H: Headers + ?Sized>(
        &mut self,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: Start,
    ) -> Result<Sight<L>, Box<Undecided<L>>> {
        let view = self.asked.look();
        let View::Ready(ready) = &**view else {
            return Err(undecided(self.asked, view));
        };
        let routed = ready.upstream.route(request, start.seed);
        if let Err(wait) = ready.upstream.admit(&routed, start.now) {
            return Err(limited(self.asked, wait));
        }
        let total = shorter(shorter(routed.timeouts.total, context.timeout), start.limit);
        self.bound(&routed.timeouts, total, (start.now, request.grpc));
        self.idempotent = context.idempotent || routed.idempotent || is_idempotent(request);
        self.treatment = routed.actions.cloned();
        self.asked.budget.deposit();
        if context.key.is_none() {
            self.key = ready.upstream.key(request);
        }
        // Nearly always the very same name, so that its text need not be looked at.
        if ptr::eq(routed.target, ready.upstream.name()) {
            return Ok(view);
        }
        self.elsewhere = ready.split(routed.target).cloned();
        Ok(self.look())
    }

    /// Its caller waits for a stream, as gRPC's do, although its headers are none of a gRPC call.
    pub(crate) fn expect_stream(&mut self) {
        self.is_stream = true;
    }

    /// Sets how long it may take, and `total` in all, from when it began; `grpc`: whether the status of a response comes at its end.
    #[inline]
    fn bound(&mut self, timeouts: &Timeouts, total: Option<Duration>, (began, grpc): (u64, bool)) {
        let kind = match total {
            Some(_) => CallKind::Bounded,
            None if grpc || self.is_stream => CallKind::Stream,
            None => CallKind::Other,
        };
        if let Some(total) = total.map(nanos) {
            self.deadline = began.saturating_add(total);
            self.grace = if grpc { nanos(GRACE).min(total / 10) } else { 0 };
        }
        self.response_header = timeouts.response_header_timeout(kind).map_or(NEVER, nanos);
        self.idle = timeouts.idle_timeout(kind).map_or(NEVER, nanos);
        self.may_be_events = kind == CallKind::Other && timeouts.idle.is_none();
    }

    /// Gives the call to `service` instead, which is the same one as seen by somebody else. Its route stays as it is.
    pub fn turn_to(&mut self, service: Arc<Subscription<L>>) {
        self.elsewhere = Some(service);
    }

    /// What is known now of the service that gets the call, to decide a further try by.
    #[inline]
    pub fn look(&self) -> Sight<L> {
        self.target().look()
    }

    /// Chooses the endpoint of the next try and counts it there.
    ///
    /// # Errors
    /// While nothing is known of the service that gets the call, and when none of its endpoints can.
    #[inline]
    pub fn decide(
        &mut self,
        view: Sight<L>,
        context: &CallContext,
        at: Moment,
    ) -> Result<Chosen<L>, Box<Undecided<L>>> {
        let View::Ready(ready) = &**view else {
            return Err(undecided(self.target(), view));
        };
        match ready.upstream.pick(&self.ask(context), at.now, at.seed) {
            Ok(picked) => {
                ready.upstream.begin(picked.index);
                if let Some(place) = self.tried.get_mut(self.tries) {
                    *place = picked.index;
                    self.tries += 1;
                }
                self.under_way = Some(Try { picked, clock: at.clock, outcome: Outcome::Unknown });
                Ok(Chosen { index: picked.index, by: view })
            }
            Err(why) => Err(unroutable(self.target(), &why)),
        }
    }

    /// What the next pick depends on.
    #[inline]
    fn ask<'b>(&'b self, context: &'b CallContext) -> PickParams<'b> {
        let avoid = &self.tried[..self.tries];
        PickParams { key: context.key.or(self.key), role: context.role.as_ref(), avoid }
    }

    /// Why [`route`](Self::route) found what it found, for whoever wants to read it.
    #[cold]
    pub(crate) fn explain_route<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: Start,
    ) -> Vec<Step> {
        match &**self.asked.look() {
            View::Ready(Ready { upstream, .. }) => {
                let ask = PickParams { key: context.key, role: context.role.as_ref(), avoid: &[] };
                upstream.explain_route(request, &ask, start.now, start.seed).steps
            }
            _ => Vec::new(),
        }
    }

    /// Why [`decide`](Self::decide) is about to choose as it will; to be asked before it counts its choice.
    #[cold]
    pub(crate) fn explain_pick(&self, view: &View<L>, context: &CallContext, at: Moment) -> Vec<Step> {
        match view {
            View::Ready(Ready { upstream, .. }) => {
                upstream.explain_pick(&self.ask(context), at.now, at.seed).steps
            }
            _ => Vec::new(),
        }
    }

    /// How many tries were begun.
    #[inline]
    pub(crate) fn tries(&self) -> usize {
        self.tries
    }

    /// Learns how the try ended and says what comes next. A retry that is granted is paid for, and what was tried is no
    /// longer outstanding.
    #[inline]
    pub fn finish(&mut self, ending: Ending, seed: u64) -> Next {
        self.end(ending);
        match ending {
            Ending::Answered | Ending::Erred | Ending::Late | Ending::Abandoned => Next::Done,
            _ => self.again(ending, seed),
        }
    }

    /// Learns how the try ended where no retry is possible.
    #[inline]
    pub fn end(&mut self, ending: Ending) {
        if let Some(attempt) = &mut self.under_way {
            attempt.outcome = ending.outcome();
        }
        if ending == Ending::Full {
            self.target().refuses.store(true, Relaxed);
        }
    }

    #[cold]
    fn again(&mut self, ending: Ending, seed: u64) -> Next {
        let Some(Try { picked, clock, .. }) = &self.under_way else { return Next::Done };
        let (picked, now) = (*picked, clock.now());
        let next = self.next(ending, &picked, now, seed);
        if matches!(next, Next::Retry { .. } | Next::Refresh { .. }) {
            self.release();
        }
        next
    }

    fn next(&mut self, ending: Ending, picked: &EndpointPick, now: u64, seed: u64) -> Next {
        let again = match ending {
            // The server passes on what another one told it, and may have carried out the call before that.
            Ending::WrongShard { .. } if picked.shard.is_none() => return Next::Done,
            Ending::WrongShard { version } => return self.refresh(version, picked.map_version, now),
            Ending::Busy | Ending::Broken | Ending::Slow => self.idempotent,
            _ => true,
        };
        let made = self.tries.saturating_sub(self.wrong_shard as usize);
        if !again || made >= self.asked.budget.attempts() as usize {
            return Next::Done;
        }
        let after = match ending {
            // Another endpoint is as good as this one was: no reason to wait for it.
            Ending::Stale | Ending::Unreachable | Ending::Unsent | Ending::Slow | Ending::Full
                if made == 1 =>
            {
                Duration::ZERO
            }
            _ => self.wait(made, seed),
        };
        if self.left(now) <= after {
            return Next::Done;
        }
        if ending != Ending::Stale && !self.asked.budget.withdraw(now) {
            return Next::Exhausted;
        }
        Next::Retry { after }
    }

    /// The choice of the try under way.
    #[inline]
    pub fn picked(&self) -> Option<&EndpointPick> {
        self.under_way.as_ref().map(|attempt| &attempt.picked)
    }

    /// Whether the try under way went where the shard map says.
    pub fn is_by_shard(&self) -> bool {
        self.picked().is_some_and(|picked| picked.shard.is_some())
    }

    /// Hands the try under way over to an answer that is still read: whoever gets its outcome so far must end it by the
    /// [`EndpointRef`] that its lane was opened with.
    ///
    /// [`EndpointRef`]: fairmesh_router::EndpointRef
    pub fn hand_over(&mut self) -> Option<Outcome> {
        self.under_way.take().map(|attempt| attempt.outcome)
    }

    /// When the call must be over, in nanoseconds of the clock; the greatest number where it has no deadline.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Whether its caller or its route gave it a deadline.
    pub fn has_deadline(&self) -> bool {
        self.deadline != NEVER
    }

    /// When a response that has begun is cut off, in nanoseconds of the clock: its deadline, and a little more where the server was sent
    /// that as well.
    #[inline]
    pub fn ends(&self) -> u64 {
        self.deadline.saturating_add(self.grace)
    }

    /// From the end of the request to the response headers.
    #[inline]
    pub fn response_header(&self) -> Duration {
        Duration::from_nanos(self.response_header)
    }

    /// For how long nothing may move in the middle of the request, or of a response.
    #[inline]
    pub fn idle(&self) -> Duration {
        Duration::from_nanos(self.idle)
    }

    /// The same for the middle of a response; `is_events`: whether it is a stream of events, asked where that matters.
    #[inline]
    pub fn response_idle(&self, is_events: impl FnOnce() -> bool) -> Duration {
        if self.may_be_events && is_events() { Timeouts::STREAM } else { self.idle() }
    }

    /// The time that is left; without a deadline, more than any wait takes.
    pub fn left(&self, now: u64) -> Duration {
        Duration::from_nanos(self.deadline.saturating_sub(now))
    }

    /// The time that is left for what comes before the request, such as a connection.
    #[inline]
    pub fn left_before_request(&self, now: u64) -> Duration {
        if self.has_deadline() { self.left(now) } else { FIRST_CONTACT }
    }

    /// What its route does with it besides sending it somewhere.
    pub fn treatment(&self) -> Option<&Arc<RouteActions>> {
        self.treatment.as_ref()
    }

    /// The key that the policy read in the request.
    pub fn key(&self) -> Option<ShardKey> {
        self.key
    }

    /// When a try that begins now must have its response headers, in nanoseconds of the clock.
    #[inline]
    pub fn try_ends(&self, now: u64) -> u64 {
        let longest = self.treatment.as_ref().and_then(|treatment| treatment.attempt_timeout());
        longest.map_or(self.ends(), |longest| self.ends().min(now.saturating_add(nanos(longest))))
    }

    /// The time that is sent to a server as its deadline: where the call has one, or its route gives servers one.
    #[inline]
    pub fn given(&self, now: u64) -> Option<Duration> {
        let left = self.has_deadline().then(|| self.left(now));
        shorter(left, self.treatment.as_ref().and_then(|treatment| treatment.server_timeout()))
    }

    /// After which time another try is to be made beside the first one, which is under way.
    #[inline]
    pub fn hedge_after(&self) -> Option<Duration> {
        let after = self.treatment.as_ref()?.hedge_after()?;
        (self.idempotent && self.tries == 1 && self.asked.budget.attempts() > 1).then_some(after)
    }

    /// The same call for a try beside the one that is under way here, which is nothing to it but an endpoint to avoid. It is
    /// yet to be decided, and then [paid for](Self::pay).
    pub fn fork(&self) -> Self {
        Self {
            asked: self.asked,
            elsewhere: self.elsewhere.clone(),
            under_way: None,
            deadline: self.deadline,
            grace: self.grace,
            response_header: self.response_header,
            idle: self.idle,
            may_be_events: self.may_be_events,
            is_stream: self.is_stream,
            treatment: self.treatment.clone(),
            key: self.key,
            idempotent: self.idempotent,
            wrong_shard: self.wrong_shard,
            tries: self.tries,
            tried: self.tried,
        }
    }

    /// Whether the try that was decided goes to an endpoint that no earlier one went to.
    pub fn is_elsewhere(&self) -> bool {
        let tried = &self.tried[..self.tries];
        tried.split_last().is_some_and(|(last, before)| !before.contains(last))
    }

    /// Takes a try beside another out of the retry budget.
    pub fn pay(&self, now: u64) -> bool {
        self.asked.budget.withdraw(now)
    }

    /// Who gets the call.
    pub fn target(&self) -> &Arc<Subscription<L>> {
        self.elsewhere.as_ref().unwrap_or(self.asked)
    }

    /// Whether a try that was sent may be followed by another, so that a transport has to keep a copy of the request.
    /// To be asked before the first try, of what it will be decided by.
    pub fn may_be_sent_twice(&self, view: &View<L>, context: &CallContext) -> bool {
        // HTTP/2 lets a server refuse unseen what was sent; what a service that nothing is known of speaks may be that.
        let refusable = match view {
            View::Ready(ready) => {
                ready.upstream.protocol().is_multiplexed() || self.target().refuses.load(Relaxed)
            }
            _ => true,
        };
        context.key.or(self.key).is_some()
            || (self.asked.budget.attempts() > 1 && (self.idempotent || refusable))
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

    /// Counts the end of the try under way.
    #[inline]
    fn release(&mut self) {
        if let Some(Try { picked, clock, outcome }) = self.under_way.take() {
            // Only a penalty has a time, and reading the clock costs as much as the rest.
            let now = match outcome {
                Outcome::Ok | Outcome::Unknown => 0,
                Outcome::Failed | Outcome::Unreachable | Outcome::Overloaded => clock.now(),
            };
            self.target().endpoint_stats().finish(picked.index, outcome, now);
        }
    }
}

impl<L: Lane> Drop for Call<'_, L> {
    #[inline]
    fn drop(&mut self) {
        self.release();
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

#[inline]
fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}

/// What a call gets from a view that decides nothing.
#[cold]
fn undecided<L>(service: &Arc<Subscription<L>>, view: Sight<L>) -> Box<Undecided<L>> {
    Box::new(match no_view(service, &view) {
        Some(fault) => Undecided::Fault(fault),
        None => Undecided::Waiting(Arc::clone(service), view.into_owned()),
    })
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

#[cold]
fn limited<L>(service: &Subscription<L>, wait: Duration) -> Box<Undecided<L>> {
    let name = service.name();
    // No finer than anybody waits.
    let rest = Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
    let message = format!(
        "{name}: its policy lets this caller make no more calls for {rest:?}; call later, or raise the limit"
    );
    Box::new(Undecided::Fault(Fault::new(FaultKind::RateLimited, message).with_retry_after(wait)))
}

#[cold]
fn unroutable<L>(service: &Subscription<L>, why: &PickError) -> Box<Undecided<L>> {
    Box::new(Undecided::Fault(Fault::new(why.into(), format!("{}: {why}", service.name()))))
}

/// Whether the method itself promises that repeating it does no harm (RFC 9110 9.2.2). gRPC sends everything as POST.
fn is_idempotent<H: Headers + ?Sized>(request: &RequestView<'_, H>) -> bool {
    !request.grpc && matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}
