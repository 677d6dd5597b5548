use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Hosts, Location, Policy, Region, Regions, RoundTrips, ServiceName};
use fairmesh_router::{CompileInput as Compiled, ServiceTable};
use tokio::time::Instant;

use super::{
    Registered,
    facts::Facts,
    maps::{Ask, Asks, MapName},
};
use crate::core::{Lane, Ready, Subscription, View};

/// A service that somebody in this process uses.
pub(super) struct Tracked<L> {
    pub(super) facts: Facts,
    pub(super) subscription: Arc<Subscription<L>>,
    /// Since when nobody uses it.
    unused: Option<Instant>,
    /// The large shard map that the agent was asked for.
    pub(super) map: Option<MapName>,
}

/// What all services are compiled with.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) regions: Regions,
    pub(super) round_trips: RoundTrips,
    pub(super) hosts: Hosts,
    pub(super) location: Option<Location>,
    pub(super) client_id: String,
    /// The same, hashed.
    pub(super) client: u64,
}

impl Surroundings {
    fn place(&self) -> Location {
        self.location.clone().unwrap_or_else(|| {
            // "nowhere" is a well-formed region name; as no round trip to it is known, all regions are equally far.
            Location::in_region(Region::new("nowhere").unwrap_or_else(|_| unreachable!("a valid name")))
        })
    }
}

impl<L: Lane> Tracked<L> {
    pub(super) fn new(subscription: Arc<Subscription<L>>, maps_offered: bool) -> Self {
        let name = subscription.name().clone();
        let facts = Facts::new(name, maps_offered);
        Self { facts, subscription, unused: None, map: None }
    }

    /// Asks for the large shard map that is wanted, and for none else.
    pub(super) fn ask_for_map(&mut self, maps: &Asks, location: Option<&Location>) {
        let wanted = self.facts.shared_map(location);
        if wanted == self.map {
            return;
        }
        let before = std::mem::replace(&mut self.map, wanted.clone());
        let asks = before.map(Ask::Unfollow).into_iter().chain(wanted.map(Ask::Follow));
        // Fails only when the follower has ended, with its worker.
        asks.for_each(|ask| drop(maps.send(ask)));
    }

    /// Whether calls wait for a first snapshot.
    pub(super) fn waits(&self) -> bool {
        matches!(*self.subscription.view(), View::Waiting)
    }

    /// Whether it turned out to be no service.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(*self.subscription.view(), View::Unknown)
    }

    /// Tells callers why there is nothing to decide with, unless there is.
    pub(super) fn despair(&self, why: &str) {
        if matches!(*self.subscription.view(), View::Waiting | View::Unavailable(_)) {
            self.subscription.publish(View::Unavailable(why.to_owned()));
        }
    }

    /// How long nobody has used the service, by when the first look found that nobody did. One that calls can be decided
    /// of counts as used while what is known `ages`: it may not be had again.
    pub(super) fn unused_for(&mut self, registered: &Registered<L>, ages: bool, now: Instant) -> Duration {
        let kept = ages && matches!(*self.subscription.view(), View::Ready(_));
        let used = registered.was_used(&self.facts.name) || kept;
        self.unused = if used { None } else { self.unused.or(Some(now)) };
        self.unused.map_or(Duration::ZERO, |since| now - since)
    }

    /// Closes connections, as nobody will call any more.
    pub(super) fn retire(&self) {
        if let View::Ready(ready) = &*self.subscription.view() {
            ready.open_lanes().for_each(|lane| lane.retire());
        }
    }

    pub(super) fn tidy(&self) {
        if let View::Ready(ready) = &*self.subscription.view() {
            ready.open_lanes().for_each(|lane| lane.tidy());
        }
    }

    /// Compiles and publishes what the facts amount to, when they amount to something.
    pub(super) fn publish(&mut self, around: &Surroundings, registered: &Registered<L>, revision: u64) {
        match self.facts.declared() {
            None => return,
            Some(false) => return self.subscription.publish(View::Unknown),
            Some(true) if !self.facts.complete() => return,
            Some(true) => {}
        }
        if let Err(problem) = self.facts.shards.compile() {
            let name = &self.facts.name;
            tracing::warn!(service = %name, %problem, "shard map is not whole; the one before stays in use");
        }
        let before = self.subscription.view();
        let before = match &*before {
            View::Ready(ready) => Some(ready),
            _ => None,
        };
        if let Some(ready) = self.compile(around, registered, revision, before) {
            self.subscription.publish(View::Ready(ready));
        }
    }

    fn compile(
        &self,
        around: &Surroundings,
        registered: &Registered<L>,
        revision: u64,
        before: Option<&Ready<L>>,
    ) -> Option<Ready<L>> {
        let policy = self.facts.policy();
        let upstream = ServiceTable::compile(
            &Compiled {
                name: &self.facts.name,
                service: self.facts.service.as_ref()?,
                policy: &policy,
                endpoints: self.facts.endpoints.list(),
                shards: self.facts.shards.last(),
                location: &around.place(),
                regions: &around.regions,
                round_trips: &around.round_trips,
                hosts: &around.hosts,
                health: &self.facts.health,
                client_id: &around.client_id,
                client: around.client,
            },
            self.subscription.endpoint_stats(),
            before.map(|ready| &ready.upstream),
        );
        let splits =
            split_targets(&self.facts.name, &policy).into_iter().map(|name| registered.get(name)).collect();
        Some(Ready::new(upstream, splits, revision, before))
    }
}

/// The services that routes send calls and copies to, without the service itself.
fn split_targets<'a>(own: &ServiceName, policy: &'a Policy) -> BTreeSet<&'a ServiceName> {
    let targets = policy.routes.iter().flat_map(|route| route.targets());
    targets.filter(|name| *name != own).collect()
}
