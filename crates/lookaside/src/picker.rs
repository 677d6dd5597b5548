//! Picks, and what is learnt of them.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{
    Fault, FaultKind, Mesh, ServiceHandle,
    call::{Clock, nanos},
    discovery::ServiceState,
};
use fairmesh_listen::Listeners;
use fairmesh_model::{
    InstanceId, KeyRange, Locality, Policy, Protocol, Role, ServiceName, ShardKey, arith::mix64,
};
use fairmesh_router::{Ask, EndpointTarget, Held, LoadReport, Outcome, Picked, RequestView, Upstream};

use crate::{
    Limits, Terms,
    book::Book,
    metrics::{Metrics, add},
};

/// How long a pick waits for a service that is asked for the first time.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// The most services that one lookaside picks for: each costs a subscription, and callers may name any.
const MOST_SERVICES: usize = 4096;
/// The most endpoints of one pick.
pub(crate) const MOST_ENDPOINTS: usize = 32;
/// Of more failures in a row than these nothing else follows.
const MOST_FAILURES: u32 = 16;

/// What a caller wants.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) service: ServiceName,
    pub(crate) key: Option<ShardKey>,
    pub(crate) role: Option<Role>,
    pub(crate) endpoints: usize,
    /// Who failed it just now.
    pub(crate) avoid: Vec<InstanceId>,
}

/// What it gets.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) service: ServiceName,
    pub(crate) protocol: Protocol,
    /// As far as callers carry it out.
    pub(crate) policy: Policy,
    pub(crate) revision: u64,
    pub(crate) keys: KeyRange,
    pub(crate) leases: Vec<(u64, Arc<EndpointTarget>)>,
}

/// What came of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) calls: u32,
    pub(crate) failures: u32,
    pub(crate) load: Option<LoadReport>,
    pub(crate) done: bool,
}

/// Picks for callers.
#[derive(Debug)]
pub(crate) struct Picker {
    mesh: Mesh,
    services: Mutex<HashMap<ServiceName, ServiceHandle>>,
    book: Mutex<Book<Held>>,
    clock: Clock,
    seeds: AtomicU64,
    pub(crate) terms: Terms,
    pub(crate) metrics: Metrics,
}

impl Picker {
    pub(crate) fn new(mesh: Mesh, terms: Terms, limits: Limits) -> Self {
        Self {
            mesh,
            services: Mutex::default(),
            book: Mutex::new(Book::new(limits.leases)),
            clock: Clock::start(),
            // Ids of one process must not be those of the one before it, whose leases callers may still report.
            seeds: AtomicU64::new(RandomState::new().hash_one(0)),
            terms,
            metrics: Metrics::default(),
        }
    }

    /// Picks endpoints and leases them.
    ///
    /// # Errors
    /// As a call of the library would fail.
    pub(crate) async fn pick(&self, wanted: &Wanted) -> Result<Given, Fault> {
        let given = self.try_pick(wanted).await;
        match &given {
            Ok(given) => add(&self.metrics.leases, given.leases.len() as u64),
            Err(_) => add(&self.metrics.faults, 1),
        }
        given
    }

    async fn try_pick(&self, wanted: &Wanted) -> Result<Given, Fault> {
        let asked = self.ready(&wanted.service).await?;
        let target = match &*asked.state() {
            ServiceState::Ready(ready) => self.routed(&ready.upstream).clone(),
            _ => return Err(changes(&wanted.service)),
        };
        let goes_to = if target == wanted.service { asked } else { self.ready(&target).await? };
        match &*goes_to.state() {
            ServiceState::Ready(ready) => self.lease(&ready.upstream, ready.revision, wanted),
            _ => Err(changes(&target)),
        }
    }

    /// Who gets calls of which nothing is known but the service.
    fn routed<'a>(&self, upstream: &'a Upstream) -> &'a ServiceName {
        let grpc = upstream.protocol() == Protocol::Grpc;
        let request = RequestView { host: "", path: "/", method: "POST", headers: &(), grpc };
        upstream.route(&request, self.seed()).target
    }

    fn lease(&self, upstream: &Upstream, revision: u64, wanted: &Wanted) -> Result<Given, Fault> {
        let keys = wanted.key.map_or(KeyRange::ALL, |key| upstream.alike(key));
        let now = self.clock.now();
        // Where the key alone says who is next, the next ones are for when the first is gone.
        let is_hashed = wanted.key.is_some() && keys != KeyRange::ALL && upstream.shards().is_none();
        let most = if is_hashed { 1 } else { wanted.endpoints.clamp(1, MOST_ENDPOINTS) };
        let picked = choose(upstream, wanted, most, || (now, self.seed()))?;
        let ends = now.saturating_add(nanos(self.terms.ttl));
        let mut book = self.book();
        let leases = picked.into_iter().map(|picked| {
            let (id, held) = (self.seed(), upstream.hold(picked.index));
            let target = Arc::clone(held.target());
            if let Some(displaced) = book.enter(id, held, ends) {
                add(&self.metrics.displaced, 1);
                displaced.finish(Outcome::Unknown, now);
            }
            (id, target)
        });
        let leases = leases.collect();
        drop(book);
        let policy = if is_hashed {
            Policy { balancing: Default::default(), ..upstream.policy().clone() }
        } else {
            upstream.policy().clone()
        };
        Ok(Given {
            service: upstream.name().clone(),
            protocol: upstream.protocol(),
            policy: Policy {
                routes: Vec::new(),
                locality: Locality::default(),
                health_check: None,
                lookaside: None,
                ..policy
            },
            revision,
            keys,
            leases,
        })
    }

    /// Learns what came of a lease; `false` where it is over.
    pub(crate) fn learn(&self, id: u64, told: Told) -> bool {
        let now = self.clock.now();
        let mut book = self.book();
        let Some(held) = book.get(id) else {
            add(&self.metrics.unknown, 1);
            return false;
        };
        add(&self.metrics.results, 1);
        add(&self.metrics.failures, told.failures.into());
        let failures = told.failures.min(MOST_FAILURES);
        let good = told.failures == 0 && told.calls > 0;
        let outcomes = (0..failures).map(|_| Outcome::Failed).chain(good.then_some(Outcome::Ok));
        for outcome in outcomes {
            held.begin();
            held.finish(outcome, now);
        }
        if let Some(load) = told.load {
            held.report_unearned(load, now);
        }
        if told.done
            && let Some(held) = book.close(id)
        {
            held.finish(Outcome::Unknown, now);
        }
        true
    }

    /// Ends what is due.
    pub(crate) fn tidy(&self) {
        let now = self.clock.now();
        let mut book = self.book();
        while let Some(held) = book.due(now) {
            held.finish(Outcome::Unknown, now);
        }
    }

    /// Waits until anything is known.
    pub(crate) async fn informed(&self) {
        self.mesh.first_snapshot().await;
    }

    /// What is counted, for operators.
    pub(crate) fn page(&self, listeners: &Listeners) -> String {
        let out = self.book().len();
        self.metrics.text((out, self.mesh.stats().data_age.as_secs_f64()), listeners)
    }

    /// A service of which calls can be decided.
    async fn ready(&self, name: &ServiceName) -> Result<ServiceHandle, Fault> {
        let service = self.service(name)?;
        match service.clone().timeout(FIRST_CONTACT).ready().await {
            Ok(()) => Ok(service),
            Err(fault) => {
                // Whoever makes names up must not fill the table.
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
        if services.len() >= MOST_SERVICES {
            let message =
                format!("this lookaside picks for {MOST_SERVICES} services already; run another for more");
            return Err(Fault::new(FaultKind::Unavailable, message));
        }
        let invalid = |problem| Fault::new(FaultKind::Invalid, "the service").caused_by(problem);
        let service = self.mesh.service(name.to_string()).map_err(invalid)?;
        services.insert(name.clone(), service.clone());
        Ok(service)
    }

    fn book(&self) -> MutexGuard<'_, Book<Held>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Different each time, as the mixing loses nothing.
    fn seed(&self) -> u64 {
        mix64(self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }
}

/// Chooses up to so many different endpoints that are as near as the first, and counts a call at each.
fn choose(
    upstream: &Upstream,
    wanted: &Wanted,
    most: usize,
    chance: impl Fn() -> (u64, u64),
) -> Result<Vec<Picked>, Fault> {
    let mut avoid = match wanted.avoid.is_empty() {
        true => Vec::new(),
        false => failed(upstream, &wanted.avoid),
    };
    let mut chosen: Vec<Picked> = Vec::new();
    while chosen.len() < most {
        let (now, seed) = chance();
        let ask = Ask { key: wanted.key, role: wanted.role.as_ref(), avoid: &avoid };
        let picked = match upstream.pick(&ask, now, seed) {
            Ok(picked) => picked,
            Err(why) if chosen.is_empty() => {
                return Err(Fault::new((&*why).into(), format!("{}: {why}", upstream.name())));
            }
            Err(_) => break,
        };
        if chosen.iter().any(|before| !is_like(upstream, before, &picked)) {
            break;
        }
        upstream.begin(picked.index);
        avoid.push(picked.index);
        chosen.push(picked);
    }
    Ok(chosen)
}

/// Whether a further pick is another endpoint that is as good to call as the first.
fn is_like(upstream: &Upstream, first: &Picked, picked: &Picked) -> bool {
    let reach = |index| {
        let found = upstream.candidates().find(|candidate| candidate.index == index);
        found.map(|candidate| (candidate.reach.ring, candidate.reach.draining))
    };
    first.index != picked.index
        && first.last_resort == picked.last_resort
        && reach(first.index) == reach(picked.index)
}

fn failed(upstream: &Upstream, instances: &[InstanceId]) -> Vec<u32> {
    let candidates = upstream.candidates();
    let failed = candidates.filter(|candidate| instances.contains(&candidate.target.instance));
    failed.map(|candidate| candidate.index).collect()
}

/// It was known a moment ago.
fn changes(service: &ServiceName) -> Fault {
    Fault::new(FaultKind::Unavailable, format!("{service}: what is known of it changes just now; ask again"))
}
