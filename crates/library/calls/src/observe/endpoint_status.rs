//! Endpoints from the view of one client, including its own ejections, which no other client shares.

use std::{collections::HashSet, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, InstanceId, Verdict};
use fairmesh_router::{Candidate, EndpointTarget, ServiceTable};

/// An endpoint of a service as seen by one client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The endpoint.
    pub target: Arc<EndpointTarget>,
    /// Whether the endpoint receives this client's calls while all endpoints are healthy. False if only the key
    /// decides.
    pub nearest: bool,
    /// Whether the endpoint is in this client's subset.
    pub in_subset: bool,
    /// Whether the endpoint is never called because it uses plaintext in a strict mesh.
    pub refused: bool,
    /// The current ejection: this client avoids the endpoint because of the outcomes of its own calls.
    pub ejection: Option<Ejection>,
    /// The last verdict of active health checks.
    pub verdict: Option<Verdict>,
    /// Calls in flight, excluding streams.
    pub outstanding: u32,
    /// Streams in flight.
    pub streams: u32,
    /// Number of consecutive failures.
    pub consecutive_failures: u32,
}

/// A current ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ejection {
    /// Time since the ejection began.
    pub age: Duration,
    /// Time until the ejection ends, unless a response ends it earlier.
    pub remaining: Duration,
}

impl EndpointStatus {
    /// Returns all endpoints of a snapshot at `now`.
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

    /// The state as one word: `refused`, `ejected` or `unhealthy` for a serving endpoint that is avoided, otherwise
    /// the state of the registration.
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
