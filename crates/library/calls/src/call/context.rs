use std::{sync::Arc, time::Duration};

use fairmesh_model::{Role, ShardKey};

use super::{clock::Clock, principal::Principal};

/// Parameters of a call that are not part of the request itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallContext {
    /// Key of the call, for a service whose servers are chosen by key.
    pub key: Option<ShardKey>,
    /// Role that the replica must have; `None` accepts any role.
    pub role: Option<Role>,
    /// Whether the call may be repeated safely, regardless of its method.
    pub idempotent: bool,
    /// Timeout of the whole call, including attempts and waits. The shortest of this timeout, the caller's deadline
    /// and the policy's timeout applies.
    pub timeout: Option<Duration>,
    /// The caller on whose behalf a proxy makes the call, if the proxy authorizes calls.
    pub principal: Option<Arc<Principal>>,
}

/// Time and randomness at the start of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallStart {
    /// Start of the call in nanoseconds of the clock.
    pub now: u64,
    /// Time left until the caller's own deadline; `None` without a deadline.
    pub limit: Option<Duration>,
    /// A random number, fresh for each call.
    pub seed: u64,
}

/// Time and randomness of one pick.
#[derive(Clone, Copy, Debug)]
pub struct DecisionContext {
    /// The clock, read again when the attempt ends.
    pub clock: Clock,
    /// Current time, in nanoseconds of the clock.
    pub now: u64,
    /// A random number, fresh for each attempt.
    pub seed: u64,
}
