use std::time::Duration;

use fairmesh_model::{Role, ShardKey};

/// What the caller says about a call beside the request itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallContext {
    /// The key, for a service that finds its servers by key.
    pub key: Option<ShardKey>,
    /// The role that the replica must have; any when absent.
    pub role: Option<Role>,
    /// Whether repeating the call does no harm, whatever its method.
    pub idempotent: bool,
    /// The whole call, tries and waits included. Of this, the caller's deadline and what the policy writes, the shortest counts.
    pub timeout: Option<Duration>,
}
