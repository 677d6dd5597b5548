use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    Authorization, InheritedDefaults, Label, Policy, Record, RecordKey, Region, RegionTable, ServiceName,
};
use fairmesh_router::{RouteNumbers, ServiceNumbers, ServiceTable, TableInput};
use fairmesh_signals::{CallCounters, Destinations, ReportedAs, ReportedPaths};
use fairmesh_wire::{record_encoding, v1};
use prost::Message as _;
use tokio::time::Instant;

use super::{
    endpoint_transport::EndpointTransport, region_table_age::ReceivedTable,
    route_backends::RouteBackendIndex, subscription::Subscription,
};

/// The known state of a service.
#[derive(Debug)]
// Every service has one state, behind an Arc. A box would cost every call another memory access.
#[allow(clippy::large_enum_variant)]
pub enum ServiceState<T> {
    /// Some records that decisions need have not yet arrived.
    Waiting,
    /// The service is not declared.
    Unknown,
    /// The records cannot be obtained. The text explains why and what to do.
    Unavailable(String),
    /// Calls can be decided.
    Ready(ReadyService<T>),
}

/// A compiled snapshot of a service, with the transports to its endpoints.
pub struct ReadyService<T> {
    /// The compiled table that routes and balances calls.
    pub upstream: ServiceTable,
    /// The other services to which the policy's routes send calls.
    splits: Vec<Arc<Subscription<T>>>,
    /// Numbers of the table's route and backend pairs, by position. Assigned when the snapshot is published.
    pub(super) route_backends: Box<[RouteBackendIndex]>,
    /// Transports by endpoint index.
    transports: Box<[OnceLock<T>]>,
    /// The RIB revision that this snapshot is based on.
    pub revision: u64,
    /// Version of the shard map; 0 without one.
    pub map_version: u64,
    /// Address of the lookaside that picks in place of this client, if the policy names one.
    pub lookaside: Option<Arc<str>>,
    /// The caller named in reports about calls.
    caller: Option<ReportedCaller>,
    /// Counters of calls; empty if the callers' region is unknown.
    reported: OnceLock<Box<ReportedPaths>>,
    /// The policy record from which the snapshot was compiled. It cannot be reconstructed from the compiled routes.
    policy_record: Option<Bytes>,
    /// The defaults that complete the policy.
    policy_defaults: InheritedDefaults,
    /// The traffic classes of the policy, which cannot be reconstructed from the compiled routes either.
    pub(super) traffic_classes: Arc<[Label]>,
    /// The region table from which the snapshot was compiled.
    region_table: Option<Arc<ReceivedTable>>,
}

/// A caller whose region is known. Calls of callers without a known region cannot be reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedCaller {
    /// The callers' own service; `None` if the callers are not a service.
    pub(crate) service: Option<ServiceName>,
    /// Whether an operator is viewing the calls to the snapshot's service.
    pub(crate) is_watched: bool,
}

impl<T> ReadyService<T> {
    /// The counters of the calls, if they are reported.
    #[inline]
    pub(crate) fn reported(&self) -> Option<&ReportedPaths> {
        self.reported.get().map(|reported| &**reported)
    }

    /// Whether a planner needs reports of the calls.
    pub(crate) fn is_planned(&self) -> bool {
        self.upstream.policy().traffic.as_deref().is_some_and(|traffic| traffic.is_planned())
    }

    /// Distinguishes calls by their parents from now on, because a planner needs this or an operator is viewing the
    /// calls. A view may begin after the snapshot was published; routers are not recompiled for it.
    pub(crate) fn follow_parents(&self) {
        if let Some(reported) = self.reported() {
            reported.follow_parents();
        }
    }

    /// Counts the calls if they can be reported. Reuses the counters of the earlier snapshot `before`, if there are
    /// any.
    fn count_calls(&self, before: Option<&Self>) {
        let Some(caller) = &self.caller else { return };
        self.reported.get_or_init(|| {
            let to = Destinations {
                service: self.upstream.name(),
                from: self.upstream.home(),
                caller: caller.service.as_ref(),
                zone: self.upstream.zone_first(),
                classes: &self.traffic_classes,
                by_parent: caller.is_watched || self.is_planned(),
            };
            let candidates: Vec<_> = self.upstream.candidates().collect();
            let endpoints = candidates.iter().map(|one| (one.index, &one.target.location));
            Box::new(ReportedPaths::new(&to, endpoints, before.and_then(Self::reported)))
        });
    }

    /// Decodes the part of the policy that says which callers may use the service, without the expressions of routes.
    /// Each call decodes it again. A policy that cannot be decoded is taken as one that allows no caller.
    #[doc(hidden)]
    pub fn read_authorization(&self) -> Option<Authorization> {
        let policy = v1::Policy::decode(self.policy_record.as_ref()?.as_ref());
        match policy.map(|policy| policy.authorization.map(Authorization::try_from)) {
            Ok(None) => None,
            Ok(Some(Ok(authorization))) => Some(authorization),
            Ok(Some(Err(_))) | Err(_) => Some(Authorization::default()),
        }
    }

    /// Decodes the effective policy with its routes, for operators. Each call decodes it again.
    #[doc(hidden)]
    pub fn read_policy(&self) -> Policy {
        let key = RecordKey::Policy(self.upstream.name().clone());
        let own = match self.policy_record.as_ref().map(|value| record_encoding::decode(&key, value)) {
            Some(Ok(Record::Policy(policy))) => policy,
            _ => Policy::default(),
        };
        self.policy_defaults.apply(own)
    }
}

impl<T: EndpointTransport> ReadyService<T> {
    /// Creates a snapshot that takes over the transports of the snapshot `before`, and retires those that are no longer
    /// needed.
    ///
    /// `splits` are the other services to which its routes send calls. `revision` is the RIB revision it is based on, 0
    /// if there is none.
    pub fn new(
        upstream: ServiceTable,
        splits: Vec<Arc<Subscription<T>>>,
        revision: u64,
        before: Option<&Self>,
    ) -> Self {
        let transports = Self::take_over_transports(&upstream, before);
        let map_version = upstream.shards().map_or(0, |shards| shards.version());
        let lookaside = upstream.policy().lookaside.as_deref().map(Into::into);
        Self {
            upstream,
            splits,
            route_backends: Box::default(),
            transports,
            revision,
            map_version,
            lookaside,
            caller: None,
            reported: OnceLock::new(),
            policy_record: None,
            policy_defaults: InheritedDefaults::default(),
            traffic_classes: Arc::default(),
            region_table: None,
        }
    }

    /// Adds the policy record and its defaults, the policy's traffic classes, and the table of the caller's region.
    pub(super) fn with_records(
        self,
        (policy_record, policy_defaults): (Option<Bytes>, InheritedDefaults),
        traffic_classes: Arc<[Label]>,
        region_table: Option<Arc<ReceivedTable>>,
    ) -> Self {
        Self { policy_record, policy_defaults, traffic_classes, region_table, ..self }
    }

    /// Region table for callers in the caller's region, and the time since it was last confirmed, for operators.
    /// `None` without a table. [`RegionTable::force`] gives the table's force at this age.
    #[doc(hidden)]
    pub fn region_table(&self) -> Option<(&Region, &RegionTable, Duration)> {
        let received = self.region_table.as_deref()?;
        let TableInput { table, age } = received.at(Instant::now());
        Some((&received.region, table, age))
    }

    /// Adds counters of the calls, for reports of callers in the caller's home region.
    pub(crate) fn with_reports(mut self, caller: ReportedCaller, before: Option<&Self>) -> Self {
        self.caller = Some(caller);
        self.count_calls(before);
        self
    }

    /// The counters for calls that other programs make to an endpoint of this snapshot; `None` if the region of the
    /// callers is unknown.
    pub fn call_counters(&self, index: u32) -> Option<Arc<CallCounters>> {
        self.reported()?.to_endpoint(ReportedAs::default(), index).cloned()
    }

    /// Counts a call of another program that no endpoint receives. `is_dropped` means that a region table dropped it.
    pub fn count_unsent(&self, is_dropped: bool) {
        if let Some(paths) = self.reported() {
            paths.to_nowhere(ReportedAs::default()).record_unsent(is_dropped);
        }
    }

    /// The transport to an endpoint of this snapshot, opened on first use.
    #[inline]
    pub fn transport(&self, index: u32, context: &T::Context) -> T {
        let open = || T::open(context, self.upstream.endpoint_ref(index));
        match self.transports.get(index as usize) {
            Some(transport) => transport.get_or_init(open).clone(),
            // Unreachable, since there is a slot for every candidate; a separate transport would still be correct.
            None => open(),
        }
    }

    /// The service and its routes for requests to this host, encoded as numbers, or the reason why no other component
    /// may pick endpoints and send requests with them.
    pub(crate) fn numbers(&self, host: &str) -> Result<(ServiceNumbers, RouteNumbers), &'static str> {
        let is_direct = self.lookaside.is_none() && !self.upstream.protocol().is_multiplexed();
        let numbers = if is_direct { self.upstream.numbers() } else { Err("it takes HTTP/2 or leases") }?;
        Ok((numbers, self.upstream.route_numbers(host)))
    }

    /// All other services to which the routes send calls.
    pub(crate) fn splits(&self) -> &[Arc<Subscription<T>>] {
        &self.splits
    }

    /// Number of the route and backend pair at `position` in a decision.
    #[inline]
    pub(crate) fn route_backend(&self, position: u32) -> RouteBackendIndex {
        self.route_backends.get(position as usize).copied().unwrap_or_default()
    }

    /// Another service to which a route sends calls.
    pub fn split(&self, name: &ServiceName) -> Option<&Arc<Subscription<T>>> {
        self.splits.iter().find(|split| split.name() == name)
    }

    /// Whether a backend of a split has no endpoint to call, or is not declared. A backend whose records have not
    /// arrived may have endpoints.
    pub fn is_empty_backend(&self, name: &ServiceName) -> bool {
        self.split(name).is_some_and(|split| match &**split.borrow_state() {
            ServiceState::Ready(ready) => ready.upstream.is_empty(),
            ServiceState::Unknown => true,
            ServiceState::Waiting | ServiceState::Unavailable(_) => false,
        })
    }

    /// Backends that have no endpoints and whose calls the routes redistribute.
    pub(crate) fn empty_backends(&self) -> Vec<ServiceName> {
        let backends = self.upstream.redistributed_backends();
        backends.filter(|name| self.is_empty_backend(name)).cloned().collect()
    }

    /// The transport to an endpoint of this snapshot, if it was opened.
    pub(crate) fn opened_transport(&self, index: u32) -> Option<&T> {
        self.transports.get(index as usize)?.get()
    }

    /// All opened transports.
    pub fn opened_transports(&self) -> impl Iterator<Item = &T> {
        self.transports.iter().filter_map(OnceLock::get)
    }

    fn take_over_transports(upstream: &ServiceTable, before: Option<&Self>) -> Box<[OnceLock<T>]> {
        let mut transports: Vec<OnceLock<T>> = Vec::new();
        for candidate in upstream.candidates() {
            let index = candidate.index as usize;
            if transports.len() <= index {
                transports.resize_with(index + 1, OnceLock::new);
            }
            let opened = before.and_then(|b| Some((b, b.transports.get(index)?.get()?)));
            let Some((before, transport)) = opened else {
                continue;
            };
            let was = before.upstream.target(candidate.index);
            let same = (was.address, was.protocol) == (candidate.target.address, candidate.target.protocol)
                && was.instance == candidate.target.instance
                && was.pod == candidate.target.pod
                && was.identity == candidate.target.identity
                && was.accepts_plaintext == candidate.target.accepts_plaintext
                && was.metric == candidate.target.metric
                && was.by_latency == candidate.target.by_latency;
            if same && candidate.in_subset {
                let _ = transports[index].set(transport.clone());
            }
        }
        let kept = |index: usize| transports.get(index).is_some_and(|transport| transport.get().is_some());
        for (index, transport) in before.into_iter().flat_map(|b| b.transports.iter().enumerate()) {
            if let (false, Some(transport)) = (kept(index), transport.get()) {
                transport.retire();
            }
        }
        transports.into()
    }
}

impl<T> fmt::Debug for ReadyService<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyService").field("revision", &self.revision).finish_non_exhaustive()
    }
}
