use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Location, Policy, ServiceName};
use fairmesh_router::{CompileInput, ServiceTable};
use tokio::time::Instant;

use super::{
    service_records::ServiceRecords,
    shard_maps::{MapCommand, MapCommands, MapName},
    subscription_registry::SubscriptionRegistry,
    topology::Topology,
};
use crate::discovery::{
    endpoint_transport::EndpointTransport,
    service_state::{ReadyService, ReportedCaller, ServiceState},
    subscription::Subscription,
};

/// Why a process that authorizes callers refuses all calls of a service.
const UNREADABLE_POLICY: &str = "its policy cannot be read, so that who may call is not known; upgrade this process, or apply the \
     policy again";

/// A service that this process uses.
pub(super) struct TrackedService<T> {
    pub(super) records: ServiceRecords,
    pub(super) subscription: Arc<Subscription<T>>,
    /// Since when the service is unused; `None` while it is in use.
    unused_since: Option<Instant>,
    /// The large shard map that was requested from the agent.
    pub(super) map: Option<MapName>,
}

impl<T: EndpointTransport> TrackedService<T> {
    pub(super) fn new(subscription: Arc<Subscription<T>>, maps_offered: bool) -> Self {
        let name = subscription.name().clone();
        let records = ServiceRecords::new(name, maps_offered);
        Self { records, subscription, unused_since: None, map: None }
    }

    /// Follows the large shard map that the records require, and stops following any other.
    pub(super) fn follow_map(&mut self, commands: &MapCommands, location: Option<&Location>) {
        let wanted = self.records.shared_map(location);
        if wanted == self.map {
            return;
        }
        let before = std::mem::replace(&mut self.map, wanted.clone());
        let changes = before.map(MapCommand::Unfollow).into_iter().chain(wanted.map(MapCommand::Follow));
        // Fails only if the follower has ended together with its worker.
        changes.for_each(|command| drop(commands.send(command)));
    }

    /// Whether calls are waiting for a first snapshot.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.subscription.state(), ServiceState::Waiting)
    }

    /// Whether the service is not declared.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(*self.subscription.state(), ServiceState::Unknown)
    }

    /// Publishes the reason why calls cannot be decided, unless they can be decided.
    pub(super) fn publish_unavailable(&self, why: &str) {
        if matches!(*self.subscription.state(), ServiceState::Waiting | ServiceState::Unavailable(_)) {
            self.subscription.publish(ServiceState::Unavailable(why.to_owned()));
        }
    }

    /// Time for which the service has been unused, from the first check that found it unused. A ready service counts
    /// as used while its data `ages`, since the data may not be available again.
    pub(super) fn unused_for(
        &mut self,
        registry: &SubscriptionRegistry<T>,
        ages: bool,
        now: Instant,
    ) -> Duration {
        let kept = ages && matches!(*self.subscription.state(), ServiceState::Ready(_));
        let used = registry.take_used(&self.records.name) || kept;
        self.unused_since = if used { None } else { self.unused_since.or(Some(now)) };
        self.unused_since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Closes the connections of a service that is no longer followed.
    pub(super) fn retire(&self) {
        if let ServiceState::Ready(ready) = &*self.subscription.state() {
            ready.opened_transports().for_each(|transport| transport.retire());
        }
    }

    pub(super) fn close_idle(&self) {
        if let ServiceState::Ready(ready) = &*self.subscription.state() {
            ready.opened_transports().for_each(|transport| transport.close_idle());
        }
    }

    pub(super) fn close_ended(&self) {
        if let ServiceState::Ready(ready) = &*self.subscription.state() {
            ready.opened_transports().for_each(|transport| transport.close_ended());
        }
    }

    /// Compiles and publishes the records once they are complete.
    pub(super) fn publish(&mut self, topology: &Topology, registry: &SubscriptionRegistry<T>, revision: u64) {
        match self.records.declared() {
            None => return,
            Some(false) => return self.subscription.publish(ServiceState::Unknown),
            Some(true) if !self.records.complete() => return,
            Some(true) if topology.authorizes_callers && self.records.is_policy_unreadable() => {
                self.retire();
                return self.subscription.publish(ServiceState::Unavailable(UNREADABLE_POLICY.into()));
            }
            Some(true) => {}
        }
        if let Err(problem) = self.records.shards.compile() {
            let name = &self.records.name;
            tracing::warn!(service = %name, %problem, "incomplete shard map; the previous one stays in use");
        }
        let before = self.subscription.state();
        let before = match &*before {
            ServiceState::Ready(ready) => Some(ready),
            _ => None,
        };
        if let Some(ready) = self.compile(topology, registry, revision, before) {
            self.subscription.publish(ServiceState::Ready(ready));
            self.records.policy_published();
        }
    }

    /// Whether the caller's own calls have changed the judgement: verdicts must now be ignored, or believed again.
    pub(super) fn is_evidence_outdated(&self, topology: &Topology) -> bool {
        let ServiceState::Ready(ready) = &*self.subscription.state() else { return false };
        let location = topology.location_or_unknown();
        let input = self.compile_input(topology, ready.upstream.policy(), &location);
        input.is_some_and(|input| ready.upstream.is_evidence_outdated(&input))
    }

    /// Whether verdicts find most endpoints of some region unhealthy to which calls may go.
    pub(super) fn is_contested(&self) -> bool {
        match &*self.subscription.state() {
            ServiceState::Ready(ready) => !ready.upstream.contested_regions().is_empty(),
            _ => false,
        }
    }

    fn compile_input<'a>(
        &'a self,
        topology: &'a Topology,
        policy: &'a Policy,
        location: &'a Location,
    ) -> Option<CompileInput<'a>> {
        Some(CompileInput {
            name: &self.records.name,
            service: self.records.service.as_ref()?,
            policy,
            endpoints: self.records.endpoints.list(),
            shards: self.records.shards.last(),
            location,
            regions: &topology.regions,
            round_trips: &topology.round_trips,
            table: self.records.table.as_ref().map(|table| table.at(Instant::now())),
            hosts: &topology.hosts,
            health: &self.records.health,
            now: topology.clock.now(),
            client_id: &topology.client_id,
            client: topology.client,
            requires_mtls: topology.requires_mtls(),
            authorizes_callers: topology.authorizes_callers,
        })
    }

    fn compile(
        &self,
        topology: &Topology,
        registry: &SubscriptionRegistry<T>,
        revision: u64,
        before: Option<&ReadyService<T>>,
    ) -> Option<ReadyService<T>> {
        let unchanged = before.filter(|_| self.records.is_policy_published());
        // An unchanged policy is not decoded again: its routes are compiled, and its other parts are in the snapshot.
        let policy = match unchanged {
            Some(before) => Cow::Borrowed(before.upstream.policy()),
            None => self.records.policy(),
        };
        let location = topology.location_or_unknown();
        let input = self.compile_input(topology, &policy, &location)?;
        let endpoint_stats = self.subscription.endpoint_stats();
        let (upstream, splits) = match unchanged {
            Some(before) => {
                (ServiceTable::recompile(&input, endpoint_stats, &before.upstream), before.splits().to_vec())
            }
            None => {
                let targets = split_targets(&self.records.name, &policy).into_iter();
                let splits = targets.map(|name| registry.get_or_track(name)).collect();
                let before = before.map(|ready| &ready.upstream);
                (ServiceTable::compile(&input, endpoint_stats, before), splits)
            }
        };
        let ready = ReadyService::new(upstream, splits, revision, before);
        let classes = match unchanged {
            Some(before) => Arc::clone(&before.traffic_classes),
            None => policy.traffic_classes().into(),
        };
        let ready = ready.with_records(self.records.policy_record(), classes, self.records.table.clone());
        // Without a location, calls have no source region, and reports of them would be useless.
        match topology.location {
            Some(_) => {
                let is_watched = registry.watched().contains(&self.records.name);
                let caller = ReportedCaller { service: topology.caller.clone(), is_watched };
                Some(ready.with_reports(caller, before))
            }
            None => Some(ready),
        }
    }
}

/// Returns the services to which routes send calls and mirrored calls, except the service itself.
fn split_targets<'a>(own: &ServiceName, policy: &'a Policy) -> BTreeSet<&'a ServiceName> {
    let targets = policy.routes.iter().flat_map(|route| route.targets());
    targets.filter(|name| *name != own).collect()
}
