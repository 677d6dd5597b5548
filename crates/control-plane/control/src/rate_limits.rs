//! Divides mesh-wide rate limits among their callers.
//!
//! State is kept in memory and exchanged by request and response. A value that changes every few seconds and
//! concerns one caller should not be a record, which would be written to disk and sent to every watcher. Only
//! limits that a policy declares are divided. After a restart callers report the parts that they hold, and
//! for a few seconds no parts are assigned. A caller claims its part every two seconds, or less often if
//! there are many callers, so that there are at most [`MAX_CLAIMS_PER_SECOND`] claims per second.

mod declared_limits;
mod expired_claims;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Invalid, Label, ServiceName, rate_limit_quota};
use fairmesh_rib::{Node, access::CallerNumbers};
use fairmesh_wire::{
    identity_of,
    v1::{self, quota_server},
};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use declared_limits::Declared;
pub(crate) use expired_claims::QuotaController;

/// Shortest interval at which a caller claims its parts of the limits.
const CLAIM_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of claims per second; with more callers, intervals become longer.
const MAX_CLAIMS_PER_SECOND: u64 = 1_000;
/// Time after the start during which no part is assigned. With many callers, which claim seldom, it is longer: at
/// most the second value, which exceeds every caller's interval.
const STARTUP_GRACE: Duration = Duration::from_secs(6);
const MAX_STARTUP_GRACE: Duration = Duration::from_secs(12);
/// Maximum number of limits in use.
const MAX_LIMITS: usize = 10_000;
/// Maximum number of callers of all limits together, each of which takes some 100 bytes. Further callers keep the
/// part that they have.
const MAX_SHARES: usize = 250_000;
/// Maximum number of limits in one claim.
const MAX_DEMANDS: usize = 1_000;

/// A service and a route of its policy. An empty route means the policy's own limit.
type LimitName = (ServiceName, String);

/// All limits in use. Implements their gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    shared: Arc<QuotaState>,
}

#[derive(Debug)]
struct QuotaState {
    node: Node,
    began: Instant,
    /// The longest interval sent to any caller, in milliseconds.
    longest: AtomicU64,
    /// Numbers of refused claims: those whose limit no policy declares, and those beyond a maximum.
    undeclared: AtomicU64,
    full: AtomicU64,
    limits: Mutex<Limits>,
    numbers: CallerNumbers,
}

#[derive(Debug, Default)]
struct Limits {
    by_name: BTreeMap<LimitName, rate_limit_quota::Quota>,
    declared: Declared,
    shares: usize,
}

impl Limits {
    /// Makes room for another caller of this identity, if necessary by removing a caller from the limit with the most
    /// callers. Returns whether there is room.
    fn make_room(&mut self, identity: u64) -> bool {
        if self.shares < MAX_SHARES {
            return true;
        }
        let largest = self.by_name.values_mut().max_by_key(|quota| quota.callers());
        let is_made = largest.is_some_and(|quota| quota.make_room(identity));
        self.shares -= usize::from(is_made);
        is_made
    }
}

/// Values for metrics.
pub(crate) struct QuotaStats {
    pub(crate) limits: usize,
    pub(crate) shares: usize,
    pub(crate) undeclared: u64,
    pub(crate) full: u64,
}

impl Quotas {
    /// Creates a service that divides the limits declared by policies in `node`.
    pub(crate) fn new(node: Node) -> Self {
        let [longest, undeclared, full] = [(); 3].map(|()| AtomicU64::default());
        let limits = Mutex::default();
        let (began, numbers) = (Instant::now(), CallerNumbers::default());
        let shared = QuotaState { node, began, longest, undeclared, full, limits, numbers };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn stats(&self) -> QuotaStats {
        let limits = self.lock();
        let (undeclared, full) = (self.shared.undeclared.load(Relaxed), self.shared.full.load(Relaxed));
        QuotaStats { limits: limits.by_name.len(), shares: limits.shares, undeclared, full }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether callers may still hold parts that they have not reported since the start. A limit's callers claim
    /// evenly over the longest interval sent to them. Half of that interval later, more than half have claimed, which
    /// determines the interval.
    fn is_starting(&self) -> bool {
        let longest = Duration::from_millis(2 * self.shared.longest.load(Relaxed));
        self.shared.began.elapsed() < longest.clamp(STARTUP_GRACE, MAX_STARTUP_GRACE)
    }

    fn lock(&self) -> MutexGuard<'_, Limits> {
        self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns parts to a caller. `identity` is the number of its identity.
    fn assign_parts(&self, request: v1::ClaimRequest, identity: u64) -> Result<v1::ClaimResponse, Invalid> {
        let v1::ClaimRequest { caller, demands } = request;
        if demands.len() > MAX_DEMANDS {
            let problem = format!("has {} entries", demands.len());
            return Err(Invalid::new("demands", problem, format!("send at most {MAX_DEMANDS}")));
        }
        let named = demands.into_iter().enumerate().map(|(i, demand)| {
            let name = name(&demand).map_err(|e| e.within(format!("demands[{i}]")))?;
            Ok((name, demand))
        });
        let named = named.collect::<Result<Vec<_>, Invalid>>()?;
        let (mut limits, mut max_callers) = (self.lock(), 0);
        let parts = named.into_iter().map(|(name, demand)| {
            let claim = rate_limit_quota::Claim {
                caller,
                identity,
                demand: demand.millicalls_per_second,
                held: demand.held,
            };
            v1::Part { parts: self.claim_one(&mut limits, name, claim, &mut max_callers) }
        });
        let parts = parts.collect();
        let spread = Duration::from_millis(max_callers * 1_000 / MAX_CLAIMS_PER_SECOND);
        self.shared.longest.fetch_max(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let next_claim_ms = u32::try_from(CLAIM_INTERVAL.max(spread).as_millis()).unwrap_or(u32::MAX);
        Ok(v1::ClaimResponse { parts, next_claim_ms })
    }

    /// Assigns the part of one limit; `None` if the caller must keep its present part. Raises `max_callers` to this
    /// limit's number of callers if that is greater.
    fn claim_one(
        &self,
        limits: &mut Limits,
        name: LimitName,
        claim: rate_limit_quota::Claim,
        max_callers: &mut u64,
    ) -> Option<u32> {
        let Some(limit) = limits.declared.limit(&self.shared.node, &name) else {
            self.shared.undeclared.fetch_add(1, Relaxed);
            return None;
        };
        let is_known = limits.by_name.get(&name).is_some_and(|quota| quota.contains(claim.caller));
        let has_place = limits.by_name.len() < MAX_LIMITS || limits.by_name.contains_key(&name);
        if !(is_known || has_place && limits.make_room(claim.identity)) {
            self.shared.full.fetch_add(1, Relaxed);
            return None;
        }
        let (now, quota) = (self.now(), limits.by_name.entry(name).or_default());
        let before = quota.callers();
        let parts = match self.is_starting() {
            true => {
                quota.record(claim, now);
                None
            }
            false => quota.claim(claim, limit, now),
        };
        let callers = quota.callers();
        limits.shares = (limits.shares + callers).saturating_sub(before);
        *max_callers = (*max_callers).max(callers as u64);
        if callers >= rate_limit_quota::MAX_CALLERS && parts.is_none() {
            self.shared.full.fetch_add(1, Relaxed);
        }
        parts
    }
}

fn name(demand: &v1::Demand) -> Result<LimitName, Invalid> {
    let service = ServiceName::new(&demand.service).map_err(|e| e.within("service"))?;
    if !demand.route.is_empty() {
        Label::new(&demand.route).map_err(|e| e.within("route"))?;
    }
    Ok((service, demand.route.clone()))
}

#[tonic::async_trait]
impl quota_server::Quota for Quotas {
    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Result<Response<v1::ClaimResponse>, Status> {
        let identity = identity_of(&request);
        let mut request = request.into_inner();
        request.caller = self.shared.numbers.of(&identity, request.caller);
        let of_identity = self.shared.numbers.of_identity(&identity).unwrap_or(request.caller);
        let response = self.assign_parts(request, of_identity);
        response.map(Response::new).map_err(|problem| Status::invalid_argument(problem.to_string()))
    }
}

#[cfg(test)]
mod tests;
