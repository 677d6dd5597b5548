use std::{sync::Arc, time::Duration};

use fairmesh_model::{Role, ShardKey};

use super::{clock::Clock, principal::Principal};

/// Parameters of a call besides the request itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallContext {
    /// The key, for a service that finds its servers by key.
    pub key: Option<ShardKey>,
    /// The role that the replica must have; any when absent.
    pub role: Option<Role>,
    /// Whether the call may be repeated safely, whatever its method.
    pub idempotent: bool,
    /// Bounds the whole call, attempts and waits included. The shortest of this, the caller's deadline and the policy's
    /// timeout applies.
    pub timeout: Option<Duration>,
    /// The caller for whom a proxy makes the call, if the proxy decides whether it is allowed.
    pub principal: Option<Arc<Principal>>,
}

/// Time and randomness at the start of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallStart {
    /// Nanoseconds of the clock.
    pub now: u64,
    /// Time left until the caller's own deadline, where it has one.
    pub limit: Option<Duration>,
    /// Random, fresh for each call.
    pub seed: u64,
}

/// Time and randomness of one pick.
#[derive(Clone, Copy, Debug)]
pub struct DecisionContext {
    /// The clock, read again when the attempt ends.
    pub clock: Clock,
    /// The time now, in nanoseconds of the clock.
    pub now: u64,
    /// Random, fresh for each attempt.
    pub seed: u64,
}
