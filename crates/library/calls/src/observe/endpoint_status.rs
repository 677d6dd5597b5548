//! Endpoints as one client sees them: with its own ejections, which no other client shares.

use std::{collections::HashSet, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, InstanceId, Verdict};
use fairmesh_router::{Candidate, EndpointTarget, ServiceTable};

/// An endpoint of a service as a client sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The endpoint.
    pub target: Arc<EndpointTarget>,
    /// Whether it shares the calls of this client while all endpoints are healthy; false where only the key decides.
    pub nearest: bool,
    /// Whether it is in the subset of this client.
    pub in_subset: bool,
    /// Whether it is not called, since it speaks plaintext in a strict mesh.
    pub refused: bool,
    /// The ejection in force: this client avoids the endpoint because of the outcomes of its own calls.
    pub ejection: Option<Ejection>,
    /// The last verdict of active health checks.
    pub verdict: Option<Verdict>,
    /// Calls in flight, without streams.
    pub outstanding: u32,
    /// Streams in flight.
    pub streams: u32,
    /// Consecutive failures.
    pub consecutive_failures: u32,
}

/// An ejection in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ejection {
    /// Time since it began.
    pub age: Duration,
    /// Time until it ends, unless a response ends it before.
    pub remaining: Duration,
}

impl EndpointStatus {
    /// All endpoints of a snapshot at `now`.
    pub(crate) fn all(table: &ServiceTable, now: u64) -> Vec<Self> {
        let nearest: HashSet<u32> = table.nearest().iter().copied().collect();
        let refused: HashSet<&InstanceId> = table.refused().iter().collect();
        let status = |one: Candidate<'_>| Self {
            target: Arc::clone(one.target),
            nearest: nearest.contains(&one.index),
            in_subset: one.in_subset,
            refused: refused.contains(&one.target.instance),
            ejection: table.ejection(one.index, now).map(|(since, until)| Ejection {
                age: Duration::from_nanos(now.saturating_sub(since)),
                remaining: Duration::from_nanos(until.saturating_sub(now)),
            }),
            verdict: one.verdict.cloned(),
            outstanding: one.outstanding,
            streams: one.streams,
            consecutive_failures: one.consecutive_failures,
        };
        table.candidates().map(status).collect()
    }

    /// Its state in one word: that of its registration, or `refused`, `ejected` or `unhealthy` if it serves and is avoided.
    pub fn state(&self) -> &'static str {
        let unhealthy = self.verdict.as_ref().is_some_and(|verdict| !verdict.healthy && !verdict.stale);
        match self.target.state {
            EndpointState::Serving if self.refused => "refused",
            EndpointState::Serving if self.ejection.is_some() => "ejected",
            EndpointState::Serving if unhealthy => "unhealthy",
            state => state.as_str(),
        }
    }
}
