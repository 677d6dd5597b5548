//! Picks the endpoint of an attempt.

use std::sync::Arc;

use fairmesh_model::Role;
use fairmesh_router::{EndpointPick, Outcome, PickError, PickParams, Step};
use fairmesh_signals::{ReportedAs, ReportedPaths, ServedCall};

use super::{
    clock::Clock,
    context::{CallContext, DecisionContext},
    route::{Unresolved, unresolved, unroutable},
    state::{Call, PendingAttempt, ReportedAttempt, SnapshotGuard},
};
use crate::discovery::{EndpointTransport, ReadyService, ServiceState};

/// The endpoint of an attempt and the snapshot from which it was chosen. Drop it before the call waits for anything.
#[derive(Debug)]
pub struct Pick<T> {
    index: u32,
    by: SnapshotGuard<T>,
}

impl<T: EndpointTransport> Pick<T> {
    /// RIB revision of the snapshot.
    pub(crate) fn revision(&self) -> u64 {
        match &**self.by {
            ServiceState::Ready(ready) => ready.revision,
            _ => 0,
        }
    }

    /// Returns the transport to the endpoint. `context` is used if the transport must be opened.
    #[inline]
    pub fn transport(&self, context: &T::Context) -> T {
        match &**self.by {
            ServiceState::Ready(ready) => ready.transport(self.index, context),
            // Only a ready state picks.
            _ => unreachable!("only a ready state picks"),
        }
    }
}

impl<T: EndpointTransport> Call<'_, T> {
    /// Chooses the endpoint of the next attempt, and counts the attempt there.
    ///
    /// # Errors
    /// The target service is not known yet, or none of its endpoints is eligible.
    #[inline]
    pub fn pick(
        &mut self,
        state: SnapshotGuard<T>,
        context: &CallContext,
        at: DecisionContext,
    ) -> Result<Pick<T>, Box<Unresolved<T>>> {
        let ServiceState::Ready(ready) = &**state else {
            return Err(unresolved(self.target(), state));
        };
        match ready.upstream.pick(&self.params(context), at.now, at.seed) {
            Ok(picked) => {
                ready.upstream.begin(picked.index);
                let reported =
                    ready.reported().and_then(|paths| self.report_attempt(paths, picked.index, at.now));
                let index = picked.index;
                if self.child.is_none() {
                    self.child = ServedCall::begin_child(|| at.clock.instant(at.now).into_std());
                }
                self.note(picked, at.clock, reported);
                Ok(Pick { index, by: state })
            }
            Err(why) => {
                if let Some(paths) = ready.reported() {
                    self.report_unsent(paths, &why);
                }
                Err(unroutable(self.target(), &why))
            }
        }
    }

    /// Counts an attempt for traffic reports.
    #[inline]
    fn report_attempt(&mut self, paths: &ReportedPaths, index: u32, now: u64) -> Option<ReportedAttempt> {
        let counters = paths.to_endpoint(self.reported_as(), index)?;
        counters.record_attempt(!std::mem::replace(&mut self.is_reported, true));
        counters.record_request_bytes(self.request_bytes);
        if let Some(streamed) = &self.streamed {
            streamed.begin(counters);
        }
        Some(ReportedAttempt { counters: Arc::clone(counters), began: now })
    }

    /// Counts a call that reaches no endpoint in traffic reports: once, even if it is decided several times.
    #[cold]
    fn report_unsent(&mut self, paths: &ReportedPaths, why: &PickError) {
        if !std::mem::replace(&mut self.is_reported, true) {
            let is_dropped = matches!(why, PickError::Dropped { .. });
            paths.to_nowhere(self.reported_as()).record_unsent(is_dropped);
        }
    }

    pub(super) fn reported_as(&self) -> ReportedAs<'_> {
        ReportedAs { class: self.class.as_ref(), parent: self.parent }
    }

    /// Turns an attempt that another component counted at this endpoint into an attempt of this call. `began` is the
    /// attempt's start, in nanoseconds of the clock.
    pub(crate) fn take_over(
        &mut self,
        state: SnapshotGuard<T>,
        index: u32,
        clock: Clock,
        began: u64,
    ) -> Pick<T> {
        let picked = EndpointPick { index, shard: None, map_version: 0, last_resort: false, panic: false };
        let reported = match &**state {
            ServiceState::Ready(ready) => ready.reported(),
            _ => None,
        };
        let reported = reported.and_then(|paths| self.report_attempt(paths, index, began));
        self.note(picked, clock, reported);
        Pick { index, by: state }
    }

    #[inline]
    fn note(&mut self, picked: EndpointPick, clock: Clock, reported: Option<ReportedAttempt>) {
        if let Some(index) = self.attempted.get_mut(self.attempts) {
            *index = picked.index;
            self.attempts += 1;
        }
        self.attempt =
            Some(PendingAttempt { picked, clock, outcome: Outcome::Unknown, ended_at: 0, reported });
    }

    /// Role that the call requests, or otherwise its route's role.
    pub(crate) fn role<'b>(&'b self, context: &'b CallContext) -> Option<&'b Role> {
        context.role.as_ref().or_else(|| self.actions.as_ref()?.role())
    }

    /// Parameters of the next pick.
    #[inline]
    fn params<'b>(&'b self, context: &'b CallContext) -> PickParams<'b> {
        let avoid = &self.attempted[..self.attempts];
        PickParams {
            key: context.key.or(self.policy_key),
            role: self.role(context),
            avoid,
            class: self.class.as_ref(),
            call_seed: self.seed,
            admitted: self.attempts > 0,
            routed_from: self.target_override.as_ref().map(|_| self.service.name()),
        }
    }

    /// Explains the next [`pick`](Self::pick). Call this before the pick counts its choice.
    #[cold]
    pub(crate) fn explain_pick(
        &self,
        state: &ServiceState<T>,
        context: &CallContext,
        at: DecisionContext,
    ) -> Vec<Step> {
        match state {
            ServiceState::Ready(ReadyService { upstream, .. }) => {
                upstream.explain_pick(&self.params(context), at.now, at.seed).steps
            }
            _ => Vec::new(),
        }
    }

    /// The endpoint picked for the attempt in flight.
    #[inline]
    pub fn picked(&self) -> Option<&EndpointPick> {
        self.attempt.as_ref().map(|attempt| &attempt.picked)
    }

    /// Whether the attempt in flight was routed by the shard map.
    pub fn is_by_shard(&self) -> bool {
        self.picked().is_some_and(|picked| picked.shard.is_some())
    }

    /// Whether the next attempt goes to an endpoint that no earlier attempt used.
    pub fn is_new_endpoint(&self) -> bool {
        let attempted = &self.attempted[..self.attempts];
        attempted.split_last().is_some_and(|(last, before)| !before.contains(last))
    }
}
