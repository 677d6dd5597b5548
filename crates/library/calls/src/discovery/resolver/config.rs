use std::{path::PathBuf, time::Duration};

use fairmesh_model::{Location, ServiceName};
use fairmesh_rib::follower::FollowerConfig;

/// Identity of the caller, and the sources of its records.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// The agents or control planes to follow.
    pub upstream: FollowerConfig,
    /// The caller's id, which stays the same after a restart.
    pub client_id: String,
    /// The caller's own service, for reports of its calls; `None` if the caller is not a service.
    pub caller: Option<ServiceName>,
    /// Location of the caller. `None` uses the location that the agent reports and stores beside its copy on disk.
    pub location: Option<Location>,
    /// Location of the caller if neither `location` nor the agent provides one.
    pub fallback_location: Option<Location>,
    /// Folder of the agent's copy on disk, which is read if the agent cannot be reached and nothing is in memory.
    pub cache_dir: Option<PathBuf>,
    /// Time for which a service without calls and handles is still followed.
    pub idle_timeout: Duration,
    /// Whether the caller authorizes the calls of its own callers.
    pub authorizes_callers: bool,
}

/// Default time for which a service without a handle is followed. With it, programs that create a handle for each
/// request keep their connections.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
