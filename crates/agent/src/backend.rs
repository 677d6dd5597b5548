use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    follower::{FollowerHandle, Freshness},
    server::{Backend, MAX_PREFIXES, WriteError},
};
use tokio::{
    sync::{futures::OwnedNotified, watch},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentConfig,
    checker::Counts,
    feed::Shared,
    maps::{self, MapName},
    subscriptions::{Claimed, Subscriptions},
};

/// How long a caller waits for the upstream before it is given a saved copy.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often idle subscriptions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Serves what the agent holds, and sees to it that it holds what is asked for.
#[derive(Clone, Debug)]
pub(crate) struct AgentBackend {
    pub(crate) shared: Arc<Shared>,
    pub(crate) upstream: FollowerHandle,
    /// What the health checker of this agent does, for metrics.
    pub(crate) checks: Arc<Counts>,
    facts: Arc<Facts>,
}

#[derive(Debug)]
struct Facts {
    software: String,
    location: Location,
    /// Where writes go, for people.
    upstreams: String,
}

impl AgentBackend {
    pub(crate) fn new(
        shared: Arc<Shared>,
        upstream: FollowerHandle,
        checks: Arc<Counts>,
        config: &AgentConfig,
    ) -> Self {
        let upstreams: Vec<String> = config.upstreams.iter().map(ToString::to_string).collect();
        let facts = Facts {
            software: format!("agent {} {}", config.name, env!("CARGO_PKG_VERSION")),
            location: config.location.clone(),
            upstreams: upstreams.join(" or "),
        };
        Self { shared, upstream, checks, facts: Arc::new(facts) }
    }

    /// Where the control plane is, for people.
    pub(crate) fn upstreams(&self) -> &str {
        &self.facts.upstreams
    }

    /// Gives up what nobody has used for long, until `stopping`.
    pub(crate) async fn sweep(self, stopping: CancellationToken) {
        let mut ticks = interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                now = ticks.tick() => {
                    let upstream = self.upstream_since();
                    // One lock from finding it idle to giving it up: it may be claimed at any time.
                    let mut subscriptions = self.shared.subscriptions();
                    for prefix in subscriptions.expired(now, upstream) {
                        self.give_up(&mut subscriptions, &prefix);
                    }
                }
                () = stopping.cancelled() => return,
            }
        }
    }

    /// One more program follows a map. Returns the prefixes that are held for it, which it gives up when it leaves.
    pub(crate) fn join_map(&self, name: &MapName) -> Vec<Prefix> {
        let mut subscriptions = self.shared.subscriptions();
        let mut held = name.prefixes();
        let wanted = held.len();
        held.retain(|prefix| {
            match subscriptions.claim_for_map(prefix) {
                Claimed::NoRoom => return false,
                Claimed::Known if !self.shared.maps.holds(prefix) => {
                    let entries = || self.shared.node.read(std::slice::from_ref(prefix)).1;
                    let whole = subscriptions.standing(prefix).is_some_and(Freshness::has_copy).then(entries);
                    self.shared.maps.hold(prefix, self.shared.node.store(), whole);
                    self.shared.disk.jobs().save([prefix.clone()]);
                }
                Claimed::Known | Claimed::ForMaps => {}
                Claimed::New { instead_of } => {
                    instead_of.iter().for_each(|prefix| self.give_up(&mut subscriptions, prefix));
                    self.shared.maps.hold(prefix, None, None);
                    self.upstream.subscribe(prefix.clone());
                }
            }
            true
        });
        drop(subscriptions);
        maps::follow(&self.shared, &self.upstream, name);
        if held.len() < wanted {
            let reason = format!("this agent follows {MAX_PREFIXES} prefixes already, all in use");
            name.prefixes().iter().for_each(|prefix| self.shared.maps.refused(prefix, &reason));
        }
        held
    }

    /// One follows it no more, for whom `held` was held.
    pub(crate) fn leave_map(&self, name: &MapName, held: &[Prefix]) {
        self.shared.maps.leave(name);
        let mut subscriptions = self.shared.subscriptions();
        held.iter().for_each(|prefix| subscriptions.release_for_map(prefix, Instant::now()));
    }

    fn give_up(&self, subscriptions: &mut Subscriptions, prefix: &Prefix) {
        tracing::debug!(%prefix, "no longer followed");
        self.upstream.unsubscribe(prefix);
        self.shared.forget(subscriptions, prefix);
    }

    /// Since when the upstream is there; `None` while it is not.
    fn upstream_since(&self) -> Option<Instant> {
        let state = self.upstream.state();
        let state = state.borrow();
        state.connected.then_some(state.since)
    }

    /// Whether a prefix can be served: `None` where it can, else what to wait for.
    ///
    /// # Errors
    /// Why it cannot, where waiting does not help.
    fn look(&self, prefix: &Prefix, patient: bool) -> Result<Option<OwnedNotified>, String> {
        let mut subscriptions = self.shared.subscriptions();
        match subscriptions.standing(prefix) {
            Some(Freshness::Followed { .. }) => return Ok(None),
            Some(Freshness::Held { .. }) if !patient || self.upstream_away().is_some() => return Ok(None),
            Some(Freshness::Missing) if !patient => {
                if let Some(reason) = self.upstream_away() {
                    return Err(format!(
                        "no control plane answers this agent, which has no copy of it: {reason}"
                    ));
                }
            }
            Some(Freshness::Held { .. } | Freshness::Missing) => {}
            Some(Freshness::Refused(reason)) => return Err(reason.clone()),
            None => {
                return Err(format!(
                    "this agent follows {MAX_PREFIXES} prefixes, all in use, and has no room for more; run another agent \
                     for some of the machine's programs"
                ));
            }
        }
        // Of changes from here on, since the lock is held.
        Ok(Some(subscriptions.changes(prefix).notified_owned()))
    }

    /// Why the upstream is away; `None` while it is there or still being reached.
    fn upstream_away(&self) -> Option<String> {
        let state = self.upstream.state();
        let state = state.borrow();
        (!state.connected && state.failures > 0).then(|| state.error.clone().unwrap_or_default())
    }
}

impl Backend for AgentBackend {
    fn node(&self) -> &Node {
        &self.shared.node
    }

    fn software(&self) -> String {
        self.facts.software.clone()
    }

    fn location(&self) -> Option<Location> {
        Some(self.facts.location.clone())
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        let upstreams = &self.facts.upstreams;
        Err(WriteError::NotWritable(format!(
            "an agent takes no writes; write to the control plane at {upstreams}"
        )))
    }

    fn acquire(&self, prefix: &Prefix) -> bool {
        let mut subscriptions = self.shared.subscriptions();
        match subscriptions.claim(prefix) {
            Claimed::Known => true,
            Claimed::ForMaps => {
                self.shared.hold_in_node(&mut subscriptions, prefix, &self.upstream);
                true
            }
            Claimed::New { instead_of } => {
                instead_of.iter().for_each(|prefix| self.give_up(&mut subscriptions, prefix));
                self.upstream.subscribe(prefix.clone());
                true
            }
            Claimed::NoRoom => false,
        }
    }

    /// Returns when the upstream sent the prefix; with a copy that is held, not later than the upstream is known to be
    /// away, or has not answered for [`PATIENCE`]. Where nothing is held, fails once both are so.
    async fn ready(&self, prefix: &Prefix) -> Result<(), String> {
        let mut state = self.upstream.state();
        let patience = sleep(PATIENCE);
        tokio::pin!(patience);
        let mut patient = true;
        loop {
            state.mark_unchanged();
            let Some(changed) = self.look(prefix, patient)? else { return Ok(()) };
            tokio::select! {
                () = changed => {}
                Ok(()) = state.changed() => {}
                () = &mut patience, if patient => patient = false,
            }
        }
    }

    fn supports_at_least(&self) -> Result<(), String> {
        Err(format!(
            "an agent holds parts of a store and cannot say when all of a revision is there; read with 'at_least' at the \
             control plane at {}, or here without",
            self.facts.upstreams
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

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, ServiceName};
    use fairmesh_rib::follower::{Backoff, Follower, FollowerConfig};
    use fairmesh_wire::transport::Address;

    use super::*;
    use crate::{disk::Disk, feed::Feed};

    #[tokio::test]
    async fn who_found_no_room_for_a_map_takes_none_from_those_who_did() {
        let folder = tempfile::tempdir().unwrap();
        let nobody = Address::Unix(folder.path().join("nobody"));
        let location = Location::in_region(Region::new("eu").unwrap());
        let config = AgentConfig {
            upstreams: vec![nobody.clone()],
            listen: nobody.clone(),
            state_dir: folder.path().into(),
            location: location.clone(),
            name: "test".into(),
            metrics: None,
        };
        let (disk, _) = Disk::open(folder.path().into(), location).await.unwrap();
        let shared = Arc::new(Shared::new(Node::replica(), disk));
        let upstream = FollowerConfig {
            addresses: vec![nobody],
            software: "test".into(),
            backoff: Backoff::default(),
            refuse_lagging: true,
        };
        let upstream = Follower::spawn(upstream, Feed::new(shared.clone()));
        let backend = AgentBackend::new(shared, upstream, Arc::default(), &config);
        let other = |i| Prefix::new(format!("/{i}/")).unwrap();
        (0..MAX_PREFIXES).for_each(|i| assert!(backend.acquire(&other(i))));
        let name = MapName { service: ServiceName::new("shop/cart").unwrap(), region: None };
        let early = backend.join_map(&name);
        assert!(early.is_empty(), "every place is in use");
        backend.release(&other(0));
        let late = backend.join_map(&name);
        assert_eq!(late, name.prefixes());
        backend.leave_map(&name, &early);
        let expired = || {
            let ever = Instant::now() + Duration::from_secs(24 * 3600);
            backend.shared.subscriptions().expired(ever, Some(Instant::now()))
        };
        assert!(expired().is_empty(), "one follows it still");
        backend.leave_map(&name, &late);
        assert_eq!(expired(), late);
    }
}
