use std::sync::Arc;

use fairmesh_connections::RequestBody;
use fairmesh_model::{Label, ShardKey};
use fairmesh_router::{EndpointPick, Outcome, RouteActions};
use fairmesh_signals::{CallCounters, ChildCall, NodeId, OriginId, ServedCall, TraceParents};
use hazarc::ArcBorrow;

use super::{clock::Clock, end_report::StreamedBytes, timeouts::CallTimeouts};
use crate::discovery::{EndpointTransport, RouteBackendIndex, ServiceState, Subscription};

/// Maximum number of attempts of one call that are remembered. A policy allows ten, and two more may go to a wrong
/// shard.
pub(super) const MAX_ATTEMPTS: usize = 12;

/// One call, from its route to its last attempt.
///
/// A call is created once and filled in place. Moving bytes that were just written in pieces of another size costs more
/// than deciding the call.
#[derive(Debug)]
pub struct Call<'a, T: EndpointTransport> {
    /// The called service. Its retry budget pays for retries.
    pub(super) service: &'a Arc<Subscription<T>>,
    /// The service that receives the call instead of the called service, if the route's split chose another backend.
    pub(super) target_override: Option<Arc<Subscription<T>>>,
    pub(super) attempt: Option<PendingAttempt>,
    pub(super) timeouts: CallTimeouts,
    /// Whether the caller expects a stream even though the headers are not a gRPC call's.
    pub(super) is_stream: bool,
    /// Actions of the route other than target selection.
    pub(super) actions: Option<Arc<RouteActions>>,
    /// The key that the policy reads from the request if the caller gives none.
    pub(super) policy_key: Option<ShardKey>,
    /// The traffic class set by the route.
    pub(super) class: Option<Label>,
    /// The call that this process is serving and on whose behalf it makes this call.
    pub(super) parent: Option<NodeId>,
    /// The first service of the call chain, if it is not this one.
    pub(super) origin: Option<OriginId>,
    /// Set while an attempt is in flight, if the call is made on behalf of a served call.
    pub(super) child: Option<ChildCall>,
    /// Known length of the request body when the call began, in bytes.
    pub(super) request_bytes: u64,
    /// Counts the rest of the request body as it arrives.
    pub(super) streamed: Option<Arc<StreamedBytes>>,
    /// Index of the route and backend.
    pub(super) route_backend: RouteBackendIndex,
    /// The random seed of the call.
    pub(super) seed: u64,
    pub(super) idempotent: bool,
    /// Whether the call was counted for traffic reports, with its first attempt or the lack of one.
    pub(super) is_reported: bool,
    /// Whether the call's fault was counted for traffic reports.
    pub(super) is_concluded: bool,
    pub(super) wrong_shard_attempts: u32,
    pub(super) attempts: usize,
    pub(super) attempted: [u32; MAX_ATTEMPTS],
}

/// An attempt in flight, which counts as outstanding at its endpoint.
#[derive(Debug)]
pub(super) struct PendingAttempt {
    pub(super) picked: EndpointPick,
    pub(super) clock: Clock,
    pub(super) outcome: Outcome,
    /// When the outcome became known, in nanoseconds of the clock. The clock is read only once per attempt, because
    /// reading it costs as much as a pick.
    pub(super) ended_at: u64,
    /// Where the end of the attempt is counted for traffic reports.
    pub(super) reported: Option<ReportedAttempt>,
}

/// An attempt whose end is counted for traffic reports.
#[derive(Debug)]
pub(super) struct ReportedAttempt {
    pub(super) counters: Arc<CallCounters>,
    /// When the attempt was decided, in nanoseconds of the clock.
    pub(super) began: u64,
}

/// A borrowed snapshot of the target service. It is passed from step to step and never stored in the call: reading back
/// a value that was just written in two halves costs more.
pub type SnapshotGuard<T> = ArcBorrow<ServiceState<T>>;

impl<'a, T: EndpointTransport> Call<'a, T> {
    /// Creates a call to a service, not yet [routed](Self::route).
    #[inline]
    pub fn new(service: &'a Arc<Subscription<T>>) -> Self {
        Self {
            service,
            target_override: None,
            attempt: None,
            timeouts: CallTimeouts::NONE,
            is_stream: false,
            actions: None,
            policy_key: None,
            class: None,
            parent: ServedCall::current_node(),
            origin: ServedCall::current_origin(),
            child: None,
            request_bytes: 0,
            streamed: None,
            route_backend: RouteBackendIndex::default(),
            seed: 0,
            idempotent: false,
            is_reported: false,
            is_concluded: false,
            wrong_shard_attempts: 0,
            attempts: 0,
            attempted: [0; MAX_ATTEMPTS],
        }
    }

    /// Returns a copy of the call for a hedged attempt. The copy treats the attempt in flight only as an endpoint to
    /// avoid. It must still be decided and then [charged](Self::charge_retry).
    pub fn fork(&self) -> Self {
        Self {
            service: self.service,
            target_override: self.target_override.clone(),
            attempt: None,
            timeouts: self.timeouts,
            is_stream: self.is_stream,
            actions: self.actions.clone(),
            policy_key: self.policy_key,
            class: self.class.clone(),
            parent: self.parent,
            origin: self.origin,
            // The parent waits for both attempts as for one.
            child: None,
            request_bytes: self.request_bytes,
            streamed: self.streamed.clone(),
            route_backend: self.route_backend,
            seed: self.seed,
            idempotent: self.idempotent,
            is_reported: self.is_reported,
            is_concluded: self.is_concluded,
            wrong_shard_attempts: self.wrong_shard_attempts,
            attempts: self.attempts,
            attempted: self.attempted,
        }
    }

    /// Finds the served call on whose behalf this call is made, from the trace of the request. Used by a proxy that
    /// handles both the calls to and the calls from a program.
    #[inline]
    pub(crate) fn find_parent(&mut self, at: &Clock, now: u64, trace: impl FnOnce() -> Option<u128>) {
        if let (None, Some(traces)) = (self.parent, TraceParents::of_this_process()) {
            let found = trace().and_then(|trace| traces.find(trace, at.instant(now).into_std()));
            (self.parent, self.origin) = found.map_or((None, None), |(node, origin)| (Some(node), origin));
        }
    }

    /// The first service in the chain of calls, which the request names.
    #[inline]
    pub(crate) fn origin(&self) -> Option<&'static str> {
        self.origin.and_then(OriginId::name)
    }

    /// The served call on whose behalf this call is made.
    pub(crate) fn parent(&self) -> Option<NodeId> {
        self.parent
    }

    /// Sets the parent of a call that runs in its own task.
    pub(crate) fn set_parent(&mut self, parent: Option<NodeId>) {
        self.parent = parent;
    }

    /// Counts the body bytes that are still to arrive, for the attempt that sends them. The declared length is not
    /// used, since it is only the caller's claim.
    pub(crate) fn count_streamed(&mut self, body: &mut RequestBody) {
        let streamed = Arc::<StreamedBytes>::default();
        self.streamed = Some(Arc::clone(&streamed));
        body.count_rest(move |bytes| streamed.count(bytes));
    }

    /// Sets the known length of the request body, which traffic reports count for each attempt.
    #[inline]
    pub(crate) fn set_request_bytes(&mut self, bytes: u64) {
        self.request_bytes = bytes;
    }

    /// The service that receives the call.
    pub fn target(&self) -> &Arc<Subscription<T>> {
        self.target_override.as_ref().unwrap_or(self.service)
    }

    /// Redirects the call to another subscription of the same service. The route stays.
    pub fn redirect_to(&mut self, service: Arc<Subscription<T>>) {
        self.target_override = Some(service);
    }

    /// The current snapshot of the target service, for deciding a further attempt.
    #[inline]
    pub fn snapshot(&self) -> SnapshotGuard<T> {
        self.target().borrow_state()
    }

    /// Actions of the route other than target selection.
    pub fn actions(&self) -> Option<&Arc<RouteActions>> {
        self.actions.as_ref()
    }

    /// The key that the policy read from the request.
    pub fn policy_key(&self) -> Option<ShardKey> {
        self.policy_key
    }

    /// Index of the route and backend.
    #[inline]
    pub(crate) fn route_backend(&self) -> RouteBackendIndex {
        self.route_backend
    }

    /// Number of attempts begun.
    #[inline]
    pub(crate) fn attempts(&self) -> usize {
        self.attempts
    }

    /// Hands the attempt in flight over to a response that is still being read. The owner of the returned outcome must
    /// end the attempt through the [`EndpointRef`] with which its transport was opened.
    ///
    /// [`EndpointRef`]: fairmesh_router::EndpointRef
    pub(crate) fn hand_over(&mut self) -> Option<(Outcome, Option<Arc<CallCounters>>)> {
        let attempt = self.attempt.take()?;
        end_child(&mut self.child, attempt.clock);
        Some((attempt.outcome, attempt.reported.map(|reported| reported.counters)))
    }

    /// Counts bytes of the response body for traffic reports.
    #[inline]
    pub(crate) fn record_bytes(&self, bytes: usize) {
        if let Some(reported) = self.attempt.as_ref().and_then(|attempt| attempt.reported.as_ref()) {
            reported.counters.record_bytes(bytes as u64);
        }
    }

    /// Counts the end of the attempt in flight.
    #[inline]
    pub(super) fn release(&mut self) {
        if let Some(PendingAttempt { picked, clock, outcome, ended_at, .. }) = self.attempt.take() {
            self.target().endpoint_stats().finish(picked.index, outcome, ended_at);
            end_child(&mut self.child, clock);
        }
    }
}

/// Ends the child call, so that its parent no longer waits for it.
#[inline]
pub(super) fn end_child(child: &mut Option<ChildCall>, clock: Clock) {
    if let Some(child) = child.take() {
        child.end(clock.instant(clock.now()).into_std());
    }
}

impl<T: EndpointTransport> Drop for Call<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}
