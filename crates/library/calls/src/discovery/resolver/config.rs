use std::{path::PathBuf, time::Duration};

use fairmesh_model::{Location, ServiceName};
use fairmesh_rib::follower::FollowerConfig;

/// The identity of the caller, and the sources of its records.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// The agent, or control planes, to follow.
    pub upstream: FollowerConfig,
    /// The caller's id, the same after its restart.
    pub client_id: String,
    /// The service that the caller is, if it is one, for reports of its calls.
    pub caller: Option<ServiceName>,
    /// Where the caller runs; `None` takes the location that the agent reports, and stores beside its copy on disk.
    pub location: Option<Location>,
    /// Where the caller runs if neither `location` nor the agent says so.
    pub fallback_location: Option<Location>,
    /// Where the agent keeps its copy on disk, read when the agent cannot be reached and nothing is in memory.
    pub cache_dir: Option<PathBuf>,
    /// How long a service is followed that is not called and has no handle.
    pub idle_timeout: Duration,
    /// Whether the caller decides for its own callers whether they may call.
    pub authorizes_callers: bool,
}

/// How long a service without a handle is followed by default: programs that make a handle for each request keep
/// their connections.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
