use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    follower::{FollowerHandle, Freshness},
    server::{MAX_PREFIXES, ServedRib, WriteError},
};
use fairmesh_wire::transport::UserPlaces;
use tokio::{
    sync::{futures::OwnedNotified, watch},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentConfig,
    health_checker::Counts,
    shard_maps::{self, MapName},
    state::AgentState,
    subscriptions::{Claimed, Subscriptions},
};

/// Time for which a new watcher waits for the upstream before it gets a saved copy.
const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between sweeps for idle subscriptions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Serves the agent's copy, and subscribes upstream to the prefixes that programs watch.
#[derive(Clone, Debug)]
pub(crate) struct AgentRib {
    pub(crate) shared: Arc<AgentState>,
    pub(crate) upstream: FollowerHandle,
    /// Counters of this agent's health checker, for metrics.
    pub(crate) checks: Arc<Counts>,
    info: Arc<AgentInfo>,
    acquired: UserPlaces,
}

#[derive(Debug)]
struct AgentInfo {
    software: String,
    location: Location,
    /// Addresses that accept writes, for error messages.
    upstreams: String,
}

impl AgentRib {
    pub(crate) fn new(
        shared: Arc<AgentState>,
        upstream: FollowerHandle,
        checks: Arc<Counts>,
        config: &AgentConfig,
    ) -> Self {
        let upstreams: Vec<String> = config.upstreams.iter().map(ToString::to_string).collect();
        let info = AgentInfo {
            software: format!("agent {} {}", config.name, env!("CARGO_PKG_VERSION")),
            location: config.location.clone(),
            upstreams: upstreams.join(" or "),
        };
        Self { shared, upstream, checks, info: Arc::new(info), acquired: UserPlaces::new(MAX_PREFIXES) }
    }

    /// Addresses of the upstreams, for error messages.
    pub(crate) fn upstreams(&self) -> &str {
        &self.info.upstreams
    }

    /// Unsubscribes from prefixes that have been idle for long, until `stopping`.
    pub(crate) async fn sweep(self, stopping: CancellationToken) {
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                now = ticks.tick() => {
                    let upstream = self.upstream_since();
                    // One lock from the check to the removal: a prefix may be claimed at any time.
                    let mut subscriptions = self.shared.subscriptions();
                    for prefix in subscriptions.expired(now, upstream) {
                        self.unfollow(&mut subscriptions, &prefix);
                    }
                }
                () = stopping.cancelled() => return,
            }
        }
    }

    /// Adds a follower of a shard map. Returns the prefixes claimed for it; pass them to
    /// [`leave_map`](Self::leave_map) later.
    pub(crate) fn join_map(&self, name: &MapName) -> Vec<Prefix> {
        let mut subscriptions = self.shared.subscriptions();
        let mut held = name.prefixes();
        let wanted = held.len();
        held.retain(|prefix| {
            match subscriptions.claim_for_map(prefix) {
                Claimed::LimitReached => return false,
                Claimed::Known if !self.shared.maps.tracks_prefix(prefix) => {
                    let entries = || self.shared.node.read(std::slice::from_ref(prefix)).1;
                    let whole =
                        subscriptions.freshness(prefix).is_some_and(Freshness::has_copy).then(entries);
                    self.shared.maps.track_prefix(prefix, self.shared.node.store(), whole);
                    self.shared.disk.jobs().save([prefix.clone()]);
                }
                Claimed::Known | Claimed::MapsOnly => {}
                Claimed::New { evicted } => {
                    evicted.iter().for_each(|prefix| self.unfollow(&mut subscriptions, prefix));
                    self.shared.maps.track_prefix(prefix, None, None);
                    self.upstream.subscribe(prefix.clone());
                }
            }
            true
        });
        drop(subscriptions);
        shard_maps::follow(&self.shared, &self.upstream, name);
        if held.len() < wanted {
            let reason = limit_reached();
            name.prefixes().iter().for_each(|prefix| self.shared.maps.refused(prefix, &reason));
        }
        held
    }

    /// Removes a follower of a shard map, with the claims made for it.
    pub(crate) fn leave_map(&self, name: &MapName, held: &[Prefix]) {
        self.shared.maps.leave(name);
        let mut subscriptions = self.shared.subscriptions();
        held.iter().for_each(|prefix| subscriptions.release_for_map(prefix, Instant::now()));
    }

    fn unfollow(&self, subscriptions: &mut Subscriptions, prefix: &Prefix) {
        tracing::debug!(%prefix, "no longer followed");
        self.upstream.unsubscribe(prefix);
        self.shared.forget(subscriptions, prefix);
    }

    /// Time at which the upstream connected; `None` while it is disconnected.
    fn upstream_since(&self) -> Option<Instant> {
        let state = self.upstream.state();
        let state = state.borrow();
        state.connected.then_some(state.since)
    }

    /// Checks whether a prefix can be served. Returns `None` if so, otherwise the notification of its next change.
    ///
    /// # Errors
    /// The reason why waiting does not help.
    fn poll_ready(&self, prefix: &Prefix, may_wait: bool) -> Result<Option<OwnedNotified>, String> {
        let mut subscriptions = self.shared.subscriptions();
        match subscriptions.freshness(prefix) {
            Some(Freshness::Followed { .. }) => return Ok(None),
            Some(Freshness::Held { .. }) if !may_wait || self.upstream_failure().is_some() => {
                return Ok(None);
            }
            Some(Freshness::Missing) if !may_wait => {
                if let Some(reason) = self.upstream_failure() {
                    return Err(format!(
                        "no control plane answers this agent, which has no copy of this prefix: {reason}"
                    ));
                }
            }
            Some(Freshness::Held { .. } | Freshness::Missing) => {}
            Some(Freshness::Refused(reason)) => return Err(reason.clone()),
            // A used prefix would not have been removed.
            None => return Err("this agent no longer follows this prefix; subscribe again".to_owned()),
        }
        // The lock is held, so no change is missed.
        Ok(Some(subscriptions.changes(prefix).notified_owned()))
    }

    /// Why the upstream is disconnected; `None` while it is connected or still connecting.
    fn upstream_failure(&self) -> Option<String> {
        let state = self.upstream.state();
        let state = state.borrow();
        (!state.connected && state.failures > 0).then(|| state.error.clone().unwrap_or_default())
    }
}

impl ServedRib for AgentRib {
    fn node(&self) -> &Node {
        &self.shared.node
    }

    fn software(&self) -> String {
        self.info.software.clone()
    }

    fn location(&self) -> Option<Location> {
        Some(self.info.location.clone())
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        let upstreams = &self.info.upstreams;
        Err(WriteError::NotWritable(format!(
            "an agent takes no writes; write to the control plane at {upstreams}"
        )))
    }

    fn acquire(&self, prefix: &Prefix, held: usize) -> Result<(), String> {
        let mut subscriptions = self.shared.subscriptions();
        match subscriptions.claim(prefix, held) {
            Claimed::Known => {}
            Claimed::MapsOnly => self.shared.hold_in_node(&mut subscriptions, prefix, &self.upstream),
            Claimed::New { evicted } => {
                evicted.iter().for_each(|prefix| self.unfollow(&mut subscriptions, prefix));
                self.upstream.subscribe(prefix.clone());
            }
            Claimed::LimitReached => return Err(limit_reached()),
        }
        Ok(())
    }

    fn acquired_by_users(&self) -> Option<&UserPlaces> {
        Some(&self.acquired)
    }

    /// Waits until the prefix has arrived from the upstream. With a saved copy, returns at the latest when the upstream
    /// is known to be disconnected or [`UPSTREAM_TIMEOUT`] has passed. Without a saved copy, once both hold, serves the
    /// retired copy on disk, or fails.
    async fn ready(&self, prefix: &Prefix) -> Result<(), String> {
        let mut state = self.upstream.state();
        let upstream_timeout = sleep(UPSTREAM_TIMEOUT);
        tokio::pin!(upstream_timeout);
        let (mut may_wait, mut may_load) = (true, true);
        loop {
            state.mark_unchanged();
            let polled = self.poll_ready(prefix, may_wait);
            if polled.is_err() && std::mem::take(&mut may_load) {
                self.shared.serve_retired(prefix).await;
                continue;
            }
            let Some(changed) = polled? else { return Ok(()) };
            tokio::select! {
                () = changed => {}
                Ok(()) = state.changed() => {}
                () = &mut upstream_timeout, if may_wait => may_wait = false,
            }
        }
    }

    fn supports_at_least(&self) -> Result<(), String> {
        Err(format!(
            "an agent holds parts of a store and cannot tell when it has a whole revision; read with \
             'at_least' at the control plane at {}, or here without it",
            self.info.upstreams
        ))
    }

    fn release(&self, prefix: &Prefix) {
        let mut subscriptions = self.shared.subscriptions();
        if subscriptions.release(prefix, Instant::now()) {
            self.shared.node.forget(prefix, |key| subscriptions.in_node(key));
        }
    }

    fn age(&self, prefix: &Prefix) -> Duration {
        self.shared.subscriptions().age(prefix, Instant::now())
    }

    fn max_age(&self) -> Duration {
        self.shared.subscriptions().oldest(Instant::now())
    }

    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.ages())
    }
}

/// Error message that explains why a prefix is refused, and the remedy.
fn limit_reached() -> String {
    format!(
        "RESOURCE_EXHAUSTED: of the {MAX_PREFIXES} prefixes that an agent follows too few are left, and a program that \
         uses as many as this gets no more; run another agent for some of the machine's programs, or follow less"
    )
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, ServiceName};
    use fairmesh_rib::follower::{Backoff, Follower, FollowerConfig};
    use fairmesh_wire::transport::Address;

    use super::*;
    use crate::{disk_writer::Disk, state::UpstreamSink};

    #[tokio::test]
    async fn refused_shard_map_follower_keeps_prefixes_claimed_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let absent = Address::Unix(folder.path().join("absent"));
        let location = Location::in_region(Region::new("eu").unwrap());
        let config = AgentConfig {
            transport: Default::default(),
            upstreams: vec![absent.clone()],
            listen: absent.clone(),
            state_dir: folder.path().into(),
            location: location.clone(),
            join_token: None,
            workload_api: None,
            local_address: None,
            name: "test".into(),
            metrics: None,
            probes: None,
        };
        let (disk, _) = Disk::open(folder.path().into(), location).await.unwrap();
        let shared = Arc::new(AgentState::new(Node::replica(), disk));
        let upstream = FollowerConfig {
            transport: Default::default(),
            addresses: vec![absent],
            software: "test".into(),
            backoff: Backoff::default(),
            refuse_lagging: true,
        };
        let upstream = Follower::spawn(upstream, UpstreamSink::new(shared.clone()));
        let backend = AgentRib::new(shared, upstream, Arc::default(), &config);
        let other = |i| Prefix::new(format!("/{i}/")).unwrap();
        (0..MAX_PREFIXES).for_each(|i| assert!(backend.acquire(&other(i), 0).is_ok()));
        let name = MapName { service: ServiceName::new("shop/cart").unwrap(), region: None };
        let early = backend.join_map(&name);
        assert!(early.is_empty(), "the limit is reached");
        backend.release(&other(0));
        let late = backend.join_map(&name);
        assert_eq!(late, name.prefixes());
        backend.leave_map(&name, &early);
        let expired = || {
            let ever = Instant::now() + Duration::from_secs(24 * 3600);
            backend.shared.subscriptions().expired(ever, Some(Instant::now()))
        };
        assert!(expired().is_empty(), "one follower is left");
        backend.leave_map(&name, &late);
        assert_eq!(expired(), late);
    }
}
