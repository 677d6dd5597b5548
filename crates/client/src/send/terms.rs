//! What a call was begun with, for what is said of it later: which limit ended it, and what became of its tries.

use std::{fmt, time::Duration};

use fairmesh_router::EndpointTarget;

use crate::{
    CallContext, Fault, FaultKind,
    core::{Start, View, nanos},
    service::Handle,
    trace::{Trace, Tried},
    transport::Reply,
};

/// What one call was begun with.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) handle: &'a Handle,
    pub(super) context: &'a CallContext,
    pub(super) start: Start,
    /// Where the caller wants to read what became of the tries.
    pub(super) trace: Option<&'a Trace>,
}

/// The shortest of what bounds the time of a call.
enum Limit {
    /// A deadline that the handle or the request carries: of whoever waits for the caller.
    Deadline(Duration),
    /// What the caller set on its handle.
    Timeout(Duration),
    Policy(Duration),
    Route(Duration),
}

impl Terms<'_> {
    /// The fault of a call whose `deadline`, in nanoseconds of the clock, has passed; `sent` says how far it came.
    #[cold]
    pub(super) fn late(&self, deadline: u64, sent: &str) -> Fault {
        let limit = self.ended_by(deadline.saturating_sub(self.start.now));
        let name = self.handle.subscription.name();
        Fault::new(FaultKind::Deadline, format!("{name}: {limit}; {sent}"))
    }

    /// Keeps what became of a try that was decided at `begun`, in nanoseconds of the clock, where anybody wants to know.
    #[inline]
    pub(super) fn trace(&self, endpoint: &EndpointTarget, begun: u64, answer: &Result<Reply, Fault>) {
        if let Some(trace) = self.trace {
            let took = Duration::from_nanos(self.handle.mesh.clock.now().saturating_sub(begun));
            let outcome = match answer {
                Ok(reply) => Ok(reply.head().0),
                Err(fault) => Err(fault.to_string()),
            };
            trace.note(Tried { endpoint: endpoint.clone(), took, outcome });
        }
    }

    /// Worked out when the call is over, since nearly every call ends in time.
    fn ended_by(&self, total: u64) -> Limit {
        let is_it = |limit: &Duration| nanos(*limit) == total;
        let timeout = self.context.timeout.filter(is_it).map(Limit::Timeout);
        let own = timeout.or_else(|| self.start.limit.filter(is_it).map(Limit::Deadline));
        own.unwrap_or_else(|| match &*self.handle.subscription.view() {
            View::Ready(ready) if is_it(&ready.upstream.policy().timeout) => {
                Limit::Policy(ready.upstream.policy().timeout)
            }
            _ => Limit::Route(Duration::from_nanos(total)),
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It came with whatever is left of it, down to the nanosecond.
            Self::Deadline(left) if left.is_zero() => f.write_str("the caller's deadline had passed"),
            Self::Deadline(left) => {
                write!(f, "the caller's deadline passed, {} ms after the call began", left.as_millis())
            }
            Self::Timeout(timeout) => write!(f, "the caller's own timeout of {timeout:?} ran out"),
            Self::Policy(timeout) => write!(f, "its policy's timeout of {timeout:?} ran out"),
            Self::Route(timeout) => write!(f, "its route's timeout of {timeout:?} ran out"),
        }
    }
}
