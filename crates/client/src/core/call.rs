use std::{ptr, sync::Arc, time::Duration};

use fairmesh_model::arith::mix64;
use fairmesh_router::{Ask, Headers, RequestView, Unroutable};

pub use self::attempt::{Ending, Next, Try};
use super::{CallContext, Clock, Lane, Subscription, View, clock::nanos};
use crate::{Fault, FaultKind};

mod attempt;

/// Tries of one call that are told apart; a policy allows ten, and two more may go to a wrong shard.
const MOST_TRIES: usize = 12;
/// How often a call may find that a server does not hold its shard (S12).
const WRONG_SHARD_TRIES: u32 = 2;
/// The first wait before a retry is drawn from 0 to this; it doubles with every try.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// One call, from its route to its last try.
#[derive(Debug)]
pub struct Call<'a, L> {
    /// The service asked for, whose budget pays for retries.
    asked: &'a Arc<Subscription<L>>,
    /// Who gets the call instead: an arm of its route's split.
    elsewhere: Option<Arc<Subscription<L>>>,
    /// What routed the call, until its first try takes it over: taking it out once costs less than twice.
    routed_by: Option<Arc<View<L>>>,
    idempotent: bool,
    deadline: u64,
    tried: [u32; MOST_TRIES],
    tries: usize,
    wrong_shard: u32,
}

/// Why no try can begin.
#[derive(Debug)]
pub enum Undecided<L> {
    /// This service's view may change soon: wait for a newer one.
    Waiting(Arc<Subscription<L>>, Arc<View<L>>),
    /// The call is over.
    Fault(Fault),
}

impl<'a, L: Lane> Call<'a, L> {
    /// Routes a call.
    ///
    /// # Errors
    /// While nothing is known of the service; begin again with the same start once there is.
    #[inline]
    pub fn begin<H: Headers + ?Sized>(
        asked: &'a Arc<Subscription<L>>,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: Start,
    ) -> Result<Self, Undecided<L>> {
        let view = asked.view();
        let View::Ready(ready) = &*view else {
            return Err(undecided(asked, view));
        };
        let routed = ready.upstream.route(request, start.seed);
        // Nearly always the very same name, so that its text need not be looked at.
        let elsewhere = match ptr::eq(routed.target, ready.upstream.name()) {
            true => None,
            false => ready.split(routed.target).cloned(),
        };
        let limits = [context.timeout, start.limit];
        let timeout = limits.into_iter().flatten().fold(routed.timeout, Duration::min);
        asked.budget.deposit();
        let idempotent = context.idempotent || routed.idempotent || is_idempotent(request);
        Ok(Self {
            asked,
            routed_by: elsewhere.is_none().then_some(view),
            elsewhere,
            idempotent,
            deadline: start.now.saturating_add(nanos(timeout)),
            tried: [0; MOST_TRIES],
            tries: 0,
            wrong_shard: 0,
        })
    }

    /// Chooses the endpoint of the next try and counts it there.
    #[inline]
    pub fn decide(&mut self, context: &CallContext, at: Moment) -> Result<Try<L>, Undecided<L>> {
        let view = self.routed_by.take().unwrap_or_else(|| self.target().view());
        let View::Ready(ready) = &*view else {
            return Err(undecided(self.target(), view));
        };
        let avoid = &self.tried[..self.tries];
        let ask = Ask { key: context.key, role: context.role.as_ref(), avoid };
        match ready.upstream.pick(&ask, at.now, at.seed) {
            Ok(picked) => {
                if let Some(place) = self.tried.get_mut(self.tries) {
                    *place = picked.index;
                    self.tries += 1;
                }
                Ok(Try::begin(view, picked, at.clock))
            }
            Err(unroutable) => Err(Undecided::Fault(unroutable_fault(self.target(), &unroutable))),
        }
    }

    /// Learns how a try ended and says what comes next. A retry that is granted is paid for.
    #[inline]
    pub fn finish(&mut self, attempt: &mut Try<L>, ending: Ending, seed: u64) -> Next {
        attempt.ended(ending);
        match ending {
            Ending::Answered | Ending::Late | Ending::Abandoned => Next::Done,
            _ => self.again(attempt, ending, seed),
        }
    }

    #[cold]
    fn again(&mut self, attempt: &Try<L>, ending: Ending, seed: u64) -> Next {
        let now = attempt.clock().now();
        let again = match ending {
            // The server passes on what another one told it, and may have carried out the call before that.
            Ending::WrongShard { .. } if attempt.picked().shard.is_none() => return Next::Done,
            Ending::WrongShard { version } => {
                return self.refresh(version, attempt.picked().map_version, now);
            }
            Ending::Busy | Ending::Broken => self.idempotent,
            _ => true,
        };
        let made = self.tries.saturating_sub(self.wrong_shard as usize);
        if !again || made >= self.asked.budget.attempts() as usize {
            return Next::Done;
        }
        let after = match ending {
            // Another endpoint is as good as this one was: no reason to wait for it.
            Ending::Stale | Ending::Unreachable | Ending::Unsent if made == 1 => Duration::ZERO,
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
        self.elsewhere.as_ref().unwrap_or(self.asked)
    }

    /// Whether a try that was sent may be followed by another, so that a transport has to keep a copy of the request.
    /// To be asked before the first try.
    pub fn may_be_sent_twice(&self, context: &CallContext) -> bool {
        // HTTP/2 lets a server refuse unseen what was sent; what another service speaks is not known yet.
        let refusable = match self.routed_by.as_deref() {
            Some(View::Ready(ready)) => ready.upstream.protocol().is_multiplexed(),
            _ => true,
        };
        context.key.is_some() || (self.asked.budget.attempts() > 1 && (self.idempotent || refusable))
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

/// What a call gets from a view that decides nothing.
#[cold]
fn undecided<L>(service: &Arc<Subscription<L>>, view: Arc<View<L>>) -> Undecided<L> {
    match no_view(service, &view) {
        Some(fault) => Undecided::Fault(fault),
        None => Undecided::Waiting(Arc::clone(service), view),
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

#[cold]
fn unroutable_fault<L>(service: &Subscription<L>, why: &Unroutable) -> Fault {
    Fault::new(why.into(), format!("{}: {why}", service.name()))
}

/// Whether the method itself promises that repeating it does no harm (RFC 9110 9.2.2). gRPC sends everything as POST.
fn is_idempotent<H: Headers + ?Sized>(request: &RequestView<'_, H>) -> bool {
    !request.grpc && matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}
