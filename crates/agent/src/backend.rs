use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    server::{Backend, MAX_PREFIXES, WriteError},
    upstream::{Handle, Standing},
};
use tokio::{
    sync::watch,
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
    pub(crate) upstream: Handle,
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
        upstream: Handle,
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

    /// One more program follows a map.
    pub(crate) fn join_map(&self, name: &MapName) {
        let mut subscriptions = self.shared.subscriptions();
        let mut full = false;
        for prefix in name.prefixes() {
            match subscriptions.claim_for_map(&prefix) {
                Claimed::Known if !self.shared.maps.holds(&prefix) => {
                    let entries = || self.shared.node.read(std::slice::from_ref(&prefix)).1;
                    let held = subscriptions.standing(&prefix).is_some_and(Standing::holds).then(entries);
                    self.shared.maps.hold(&prefix, self.shared.node.store(), held);
                    self.shared.disk.jobs().save([prefix]);
                }
                Claimed::Known | Claimed::ForMaps => {}
                Claimed::New { instead_of } => {
                    instead_of.iter().for_each(|prefix| self.give_up(&mut subscriptions, prefix));
                    self.shared.maps.hold(&prefix, None, None);
                    self.upstream.subscribe(prefix);
                }
                Claimed::NoRoom => full = true,
            }
        }
        drop(subscriptions);
        maps::follow(&self.shared, &self.upstream, name);
        if full {
            let reason = format!("this agent follows {MAX_PREFIXES} prefixes already, all in use");
            name.prefixes().iter().for_each(|prefix| self.shared.maps.refused(prefix, &reason));
        }
    }

    /// One follows it no more.
    pub(crate) fn leave_map(&self, name: &MapName) {
        self.shared.maps.leave(name);
        let mut subscriptions = self.shared.subscriptions();
        name.prefixes().iter().for_each(|prefix| subscriptions.release_for_map(prefix, Instant::now()));
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
        Err(WriteError::Elsewhere(format!(
            "an agent takes no writes; write to the control plane at {upstreams}"
        )))
    }

    fn claim(&self, prefix: &Prefix) -> bool {
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
        let (mut standings, mut state) = (self.shared.standings(), self.upstream.state());
        let patience = sleep(PATIENCE);
        tokio::pin!(patience);
        let mut patient = true;
        loop {
            standings.mark_unchanged();
            state.mark_unchanged();
            match self.shared.subscriptions().standing(prefix) {
                Some(Standing::Followed { .. }) => return Ok(()),
                Some(Standing::Held { .. }) if !patient || self.upstream_away().is_some() => return Ok(()),
                Some(Standing::Missing) if !patient => {
                    if let Some(reason) = self.upstream_away() {
                        return Err(format!(
                            "no control plane answers this agent, which has no copy of it: {reason}"
                        ));
                    }
                }
                Some(Standing::Held { .. } | Standing::Missing) => {}
                Some(Standing::Refused(reason)) => return Err(reason.clone()),
                None => {
                    return Err(format!(
                        "this agent follows {MAX_PREFIXES} prefixes already, all in use; ask for folders further up"
                    ));
                }
            }
            tokio::select! {
                Ok(()) = standings.changed() => {}
                Ok(()) = state.changed() => {}
                () = &mut patience, if patient => patient = false,
            }
        }
    }

    fn waits(&self) -> Result<(), String> {
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

    fn ages(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.ages())
    }
}
