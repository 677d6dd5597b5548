//! Picks endpoints for callers, and records the results that they report.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{
    Fault, FaultKind, Mesh, ServiceHandle,
    call::{Clock, nanos},
    discovery::{EndpointTransport, ReadyService, ServiceState},
    forwarding::service_state,
};
use fairmesh_model::{
    Identity, InstanceId, KeyRange, Locality, Policy, Protocol, Role, ServiceName, ShardKey, arith::mix64,
};
use fairmesh_router::{
    EndpointPick, EndpointRef, EndpointTarget, LoadReport, Outcome, PickParams, RequestView, ServiceTable,
};
use fairmesh_signals::CallCounters;

use prometheus_client::registry::Registry;
use tonic::Status;

use crate::{
    LeaseTerms, Limits,
    caller_grants::Grants,
    lease_table::LeaseTable,
    metrics::{Metrics, add},
};

/// How long a pick waits for the first records of a service.
const FIRST_PICK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of services per lookaside. Each costs a subscription, and callers may name any service.
const MAX_SERVICES: usize = 4096;
/// Maximum number of empty backends that one pick tries before the caller is asked to retry.
const MAX_EMPTY_BACKENDS: usize = 16;
/// Maximum number of endpoints per pick.
pub(crate) const MAX_ENDPOINTS: usize = 32;
/// Maximum number of consecutive failures that have an effect.
const MAX_FAILURES: u32 = 16;

/// A leased endpoint, which a caller may call.
#[derive(Debug)]
struct Lease {
    held: EndpointRef,
    /// Counters for the lease's calls; `None` if no planner needs the counts.
    counters: Option<Arc<CallCounters>>,
}

/// A caller's request for a pick.
#[derive(Clone, Debug)]
pub(crate) struct PickQuery {
    pub(crate) caller: Identity,
    pub(crate) service: ServiceName,
    pub(crate) key: Option<ShardKey>,
    pub(crate) role: Option<Role>,
    pub(crate) endpoints: usize,
    /// Endpoints that recently failed for the caller.
    pub(crate) avoid: Vec<InstanceId>,
}

/// The result of a pick for a caller.
#[derive(Debug)]
pub(crate) struct PickResult {
    pub(crate) service: ServiceName,
    pub(crate) protocol: Protocol,
    /// The part of the policy that callers apply themselves.
    pub(crate) policy: Policy,
    pub(crate) revision: u64,
    pub(crate) keys: KeyRange,
    pub(crate) leases: Vec<(u64, Arc<EndpointTarget>)>,
}

/// A caller's report about a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseReport {
    pub(crate) calls: u32,
    pub(crate) failures: u32,
    pub(crate) load: Option<LoadReport>,
    pub(crate) done: bool,
}

/// Picks endpoints for callers.
#[derive(Debug)]
pub(crate) struct Picker {
    mesh: Mesh,
    grants: Grants,
    services: Mutex<HashMap<ServiceName, ServiceHandle>>,
    leases: Mutex<LeaseTable<Lease>>,
    clock: Clock,
    seeds: AtomicU64,
    pub(crate) lease_terms: LeaseTerms,
    pub(crate) metrics: Metrics,
}

impl Picker {
    pub(crate) fn new(mesh: Mesh, grants: Grants, (lease_terms, limits): (LeaseTerms, Limits)) -> Self {
        Self {
            mesh,
            grants,
            services: Mutex::default(),
            leases: Mutex::new(LeaseTable::new(limits.leases)),
            clock: Clock::start(),
            // Ids must differ from those of an earlier process, whose leases callers may still report.
            seeds: AtomicU64::new(RandomState::new().hash_one(0)),
            lease_terms,
            metrics: Metrics::default(),
        }
    }

    /// Picks endpoints and leases them.
    ///
    /// # Errors
    /// The fault that a call of the library would have, or the caller may not know the service.
    pub(crate) async fn pick(&self, query: &PickQuery) -> Result<PickResult, Status> {
        let picked = self.try_pick(query).await;
        match &picked {
            Ok(picked) => add(&self.metrics.leases, picked.leases.len() as u64),
            Err(_) => add(&self.metrics.errors, 1),
        }
        picked
    }

    async fn try_pick(&self, query: &PickQuery) -> Result<PickResult, Status> {
        let requested = self.ready(&query.service).await;
        self.permit(query, (&query.service, requested.as_ref().ok())).await?;
        let requested = requested?;
        let (target, routed) = self.routed(query, requested).await?;
        match &*service_state(&routed) {
            ServiceState::Ready(ready) => self.lease(ready, query).map_err(Status::from),
            _ => Err(changing(&target).into()),
        }
    }

    /// Returns the service that gets the call. The caller must be permitted to know that service.
    async fn routed(
        &self,
        query: &PickQuery,
        requested: ServiceHandle,
    ) -> Result<(ServiceName, ServiceHandle), Status> {
        let seed = self.next_seed();
        let target = || match &*service_state(&requested) {
            ServiceState::Ready(ready) => Ok(Self::route_target(ready, seed).clone()),
            _ => Err(changing(&query.service)),
        };
        let mut backend = target()?;
        for _ in 0..MAX_EMPTY_BACKENDS {
            if backend == query.service {
                return Ok((backend, requested));
            }
            let known = self.ready(&backend).await;
            // The route may give the calls of a backend that turns out to be empty to another one.
            let routed = target()?;
            if routed == backend {
                let known = known?;
                self.permit(query, (&backend, Some(&known))).await?;
                return Ok((backend, known));
            }
            backend = routed;
        }
        Err(changing(&query.service).into())
    }

    /// Checks that the caller may learn about a service. The handle has the service's records, if they exist.
    async fn permit(
        &self,
        query: &PickQuery,
        (service, handle): (&ServiceName, Option<&ServiceHandle>),
    ) -> Result<(), Status> {
        let authorization = || match &*service_state(handle?) {
            ServiceState::Ready(ready) => ready.read_authorization(),
            _ => None,
        };
        self.grants.check(&query.caller, service, authorization).await
    }

    /// The service to which a call without path and headers is routed.
    fn route_target<T: EndpointTransport>(ready: &ReadyService<T>, seed: u64) -> &ServiceName {
        let upstream = &ready.upstream;
        let grpc = upstream.protocol() == Protocol::Grpc;
        let request = RequestView { host: "", path: "/", method: "POST", headers: &(), grpc };
        let is_empty = |name: &ServiceName| ready.is_empty_backend(name);
        upstream.route_past_empty(&request, seed, is_empty).target
    }

    fn lease<T: EndpointTransport>(
        &self,
        ready: &ReadyService<T>,
        query: &PickQuery,
    ) -> Result<PickResult, Fault> {
        let (upstream, revision) = (&ready.upstream, ready.revision);
        let keys = query.key.map_or(KeyRange::ALL, |key| upstream.equivalent_keys(key));
        let now = self.clock.now();
        // If the key alone determines the endpoint, the other endpoints are only for its failure.
        let is_hashed = query.key.is_some() && keys != KeyRange::ALL && upstream.shards().is_none();
        let limit = if is_hashed { 1 } else { query.endpoints.clamp(1, MAX_ENDPOINTS) };
        let picked = choose(upstream, query, limit, || (now, self.next_seed()));
        let picked = picked.inspect_err(|fault| ready.count_unsent(fault.kind() == FaultKind::Dropped))?;
        let ends = now.saturating_add(nanos(self.lease_terms.ttl));
        let mut table = self.lease_table();
        let leases = picked.into_iter().map(|picked| {
            let (id, held) = (self.next_seed(), upstream.endpoint_ref(picked.index));
            let target = Arc::clone(held.target());
            let lease = Lease { held, counters: ready.call_counters(picked.index) };
            if let Some(evicted) = table.insert(id, lease, ends) {
                add(&self.metrics.evicted, 1);
                evicted.held.finish(Outcome::Unknown, now);
            }
            (id, target)
        });
        let leases = leases.collect();
        drop(table);
        let policy = if is_hashed {
            Policy { balancing: Default::default(), ..upstream.policy().clone() }
        } else {
            upstream.policy().clone()
        };
        Ok(PickResult {
            service: upstream.name().clone(),
            protocol: upstream.protocol(),
            policy: Policy {
                routes: Vec::new(),
                locality: Locality::default(),
                health_check: None,
                lookaside: None,
                traffic: None,
                ..policy
            },
            revision,
            keys,
            leases,
        })
    }

    /// Records a report about a lease. Returns `false` if the lease is unknown or has expired.
    pub(crate) fn record(&self, id: u64, report: LeaseReport) -> bool {
        let now = self.clock.now();
        let mut leases = self.lease_table();
        let Some(Lease { held, counters }) = leases.get(id) else {
            add(&self.metrics.unknown, 1);
            return false;
        };
        add(&self.metrics.reports, 1);
        add(&self.metrics.failures, report.failures.into());
        if let Some(counters) = counters {
            let calls = u64::from(report.calls.max(report.failures));
            counters.record_calls(calls, calls - u64::from(report.failures));
        }
        let failures = report.failures.min(MAX_FAILURES);
        let good = report.failures == 0 && report.calls > 0;
        let outcomes = (0..failures).map(|_| Outcome::Failed).chain(good.then_some(Outcome::Ok));
        for outcome in outcomes {
            held.begin();
            held.finish(outcome, now);
        }
        if let Some(load) = report.load {
            held.record_unrewarded_report(load, now);
        }
        if report.done
            && let Some(lease) = leases.remove(id)
        {
            lease.held.finish(Outcome::Unknown, now);
        }
        true
    }

    /// Ends expired leases.
    pub(crate) fn expire_leases(&self) {
        let now = self.clock.now();
        let mut leases = self.lease_table();
        while let Some(lease) = leases.pop_expired(now) {
            lease.held.finish(Outcome::Unknown, now);
        }
    }

    /// Waits for the first routing information.
    pub(crate) async fn first_snapshot(&self) {
        self.mesh.first_snapshot().await;
    }

    /// Registers the metrics with their current values.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        let active = self.lease_table().len();
        self.metrics.register((active, self.mesh.stats().data_age.as_secs_f64()), registry);
    }

    /// Returns the handle of a service once its records have arrived.
    async fn ready(&self, name: &ServiceName) -> Result<ServiceHandle, Fault> {
        let service = self.service(name)?;
        match service.clone().timeout(FIRST_PICK_TIMEOUT).prepare().await {
            Ok(()) => Ok(service),
            Err(fault) => {
                // Made-up names must not fill the table.
                self.services.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                Err(fault)
            }
        }
    }

    fn service(&self, name: &ServiceName) -> Result<ServiceHandle, Fault> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = services.get(name) {
            return Ok(service.clone());
        }
        if services.len() >= MAX_SERVICES {
            let message =
                format!("this lookaside has {MAX_SERVICES} services, its limit; run another one for more");
            return Err(Fault::new(FaultKind::Unavailable, message));
        }
        let invalid = |problem| Fault::new(FaultKind::Invalid, "the service").caused_by(problem);
        let service = self.mesh.service(name.to_string()).map_err(invalid)?;
        services.insert(name.clone(), service.clone());
        Ok(service)
    }

    fn lease_table(&self) -> MutexGuard<'_, LeaseTable<Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a seed that differs from all earlier ones, since the mixing function is a bijection.
    fn next_seed(&self) -> u64 {
        mix64(self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }
}

/// Chooses up to `limit` distinct endpoints in the first endpoint's ring and state, and counts a call at each.
fn choose(
    upstream: &ServiceTable,
    query: &PickQuery,
    limit: usize,
    now_and_seed: impl Fn() -> (u64, u64),
) -> Result<Vec<EndpointPick>, Fault> {
    let mut avoid = match query.avoid.is_empty() {
        true => Vec::new(),
        false => failed_indexes(upstream, &query.avoid),
    };
    let (_, call_seed) = now_and_seed();
    let mut chosen: Vec<EndpointPick> = Vec::new();
    while chosen.len() < limit {
        let (now, seed) = now_and_seed();
        let ask = PickParams {
            key: query.key,
            role: query.role.as_ref(),
            avoid: &avoid,
            class: None,
            call_seed,
            admitted: !chosen.is_empty(),
            routed_from: (query.service != *upstream.name()).then_some(&query.service),
        };
        let picked = match upstream.pick(&ask, now, seed) {
            Ok(picked) => picked,
            Err(why) if chosen.is_empty() => {
                return Err(Fault::new((&*why).into(), format!("{}: {why}", upstream.name())));
            }
            Err(_) => break,
        };
        if chosen.iter().any(|before| !is_equivalent(upstream, before, &picked)) {
            break;
        }
        upstream.begin(picked.index);
        avoid.push(picked.index);
        chosen.push(picked);
    }
    Ok(chosen)
}

/// Whether a further pick is a different endpoint in the same ring and state as the first one. With a region table it
/// must also be in the same region, since callers divide their calls evenly over the endpoints.
fn is_equivalent(upstream: &ServiceTable, first: &EndpointPick, picked: &EndpointPick) -> bool {
    let reach = |index| {
        let found = upstream.candidates().find(|candidate| candidate.index == index);
        found.map(|candidate| {
            let region = upstream.has_region_table().then_some(&candidate.target.location.region);
            (candidate.distance.ring, candidate.distance.draining, region)
        })
    };
    first.index != picked.index
        && first.last_resort == picked.last_resort
        && reach(first.index) == reach(picked.index)
}

fn failed_indexes(upstream: &ServiceTable, instances: &[InstanceId]) -> Vec<u32> {
    let candidates = upstream.candidates();
    let failed = candidates.filter(|candidate| instances.contains(&candidate.target.instance));
    failed.map(|candidate| candidate.index).collect()
}

/// Returns the fault for a service whose records have just disappeared.
fn changing(service: &ServiceName) -> Fault {
    Fault::new(FaultKind::Unavailable, format!("{service}: its records are changing; retry"))
}
