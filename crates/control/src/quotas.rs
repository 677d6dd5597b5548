//! Divides the limits that hold for a whole mesh among those who call.
//!
//! In memory, and by request and response: what changes every few seconds and concerns one caller is no record, which would be
//! written to disk and sent to everybody who watches. Only limits that a policy declares are divided. After a restart callers report
//! what they hold, and for a few seconds no part is given out. One caller claims every two seconds; where there are many, less
//! often, so that all together claim no more than [`CLAIMS`] times a second.

mod declared;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Invalid, Label, ServiceName, quota};
use fairmesh_rib::Node;
use fairmesh_wire::v1::{self, quota_server};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use declared::Declared;

/// How often a caller claims.
const PERIOD: Duration = Duration::from_secs(2);
/// How many claims a second are wanted at most.
const CLAIMS: u64 = 1_000;
/// For how long after a start no part is given out; where callers are so many that they claim seldom, up to the second, which is
/// longer than any of them waits.
const SETTLING: Duration = Duration::from_secs(6);
const LONG_SETTLING: Duration = Duration::from_secs(12);
/// Limits that are divided; others are not.
const MAX_LIMITS: usize = 10_000;
/// Callers of all limits together, some 100 bytes each; further ones go by what they have.
const MAX_SHARES: usize = 250_000;
/// Limits in one claim.
const MAX_DEMANDS: usize = 1_000;

/// A service, and the route of its policy; empty is the policy itself.
type Name = (ServiceName, String);

/// Every limit that is divided.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    node: Node,
    began: Instant,
    /// The longest period that any caller was sent, in milliseconds.
    longest: AtomicU64,
    /// Claims of limits that no policy declares, and of limits that too many share.
    undeclared: AtomicU64,
    full: AtomicU64,
    limits: Mutex<Limits>,
}

#[derive(Debug, Default)]
struct Limits {
    by_name: BTreeMap<Name, quota::Quota>,
    declared: Declared,
    shares: usize,
}

/// How much there is, for metrics.
pub(crate) struct Size {
    pub(crate) limits: usize,
    pub(crate) shares: usize,
    pub(crate) undeclared: u64,
    pub(crate) full: u64,
}

impl Quotas {
    /// Divides the limits of the policies in `node`.
    pub(crate) fn new(node: Node) -> Self {
        let [longest, undeclared, full] = [(); 3].map(|()| AtomicU64::default());
        let limits = Mutex::default();
        let shared = Shared { node, began: Instant::now(), longest, undeclared, full, limits };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn size(&self) -> Size {
        let limits = self.lock();
        let (undeclared, full) = (self.shared.undeclared.load(Relaxed), self.shared.full.load(Relaxed));
        Size { limits: limits.by_name.len(), shares: limits.shares, undeclared, full }
    }

    /// Forgets limits without claims and those that are declared no longer, for ever.
    pub(crate) async fn sweep(self) {
        let mut ticks = tokio::time::interval(SETTLING);
        loop {
            ticks.tick().await;
            let now = self.now();
            let mut limits = self.lock();
            let Limits { by_name, declared, shares } = &mut *limits;
            declared.retain(&self.shared.node);
            by_name.retain(|name, quota| declared.holds(name) && quota.expire(now));
            *shares = by_name.values().map(quota::Quota::callers).sum();
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether callers may hold parts that they have not reported yet. Those of a limit claim evenly over the longest period that
    /// they were sent: once half of that time has passed, more than half have claimed, which tells how long it is.
    fn settling(&self) -> bool {
        let longest = Duration::from_millis(2 * self.shared.longest.load(Relaxed));
        self.shared.began.elapsed() < longest.clamp(SETTLING, LONG_SETTLING)
    }

    fn lock(&self) -> MutexGuard<'_, Limits> {
        self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn divide(&self, request: v1::ClaimRequest) -> Result<v1::ClaimResponse, Invalid> {
        let v1::ClaimRequest { caller, demands } = request;
        if demands.len() > MAX_DEMANDS {
            let problem = format!("{} are too many", demands.len());
            return Err(Invalid::new("demands", problem, format!("send at most {MAX_DEMANDS}")));
        }
        let named = demands.into_iter().enumerate().map(|(i, demand)| {
            let name = name(&demand).map_err(|e| e.within(format!("demands[{i}]")))?;
            Ok((name, demand))
        });
        let named = named.collect::<Result<Vec<_>, Invalid>>()?;
        let (mut limits, mut most) = (self.lock(), 0);
        let parts = named.into_iter().map(|(name, demand)| {
            let claim = quota::Claim { caller, demand: demand.millicalls_per_second, held: demand.held };
            v1::Part { parts: self.one(&mut limits, name, claim, &mut most) }
        });
        let parts = parts.collect();
        let spread = Duration::from_millis(most * 1_000 / CLAIMS);
        self.shared.longest.fetch_max(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let again_ms = u32::try_from(PERIOD.max(spread).as_millis()).unwrap_or(u32::MAX);
        Ok(v1::ClaimResponse { parts, again_ms })
    }

    /// The part of one limit; `None` where the caller goes by what it has. `most` is the most callers of any limit so far.
    fn one(&self, limits: &mut Limits, name: Name, claim: quota::Claim, most: &mut u64) -> Option<u32> {
        let Some(whole) = limits.declared.limit(&self.shared.node, &name) else {
            self.shared.undeclared.fetch_add(1, Relaxed);
            return None;
        };
        let is_full = limits.shares >= MAX_SHARES
            || (limits.by_name.len() >= MAX_LIMITS && !limits.by_name.contains_key(&name));
        if is_full && !limits.by_name.get(&name).is_some_and(|quota| quota.contains(claim.caller)) {
            self.shared.full.fetch_add(1, Relaxed);
            return None;
        }
        let (now, quota) = (self.now(), limits.by_name.entry(name).or_default());
        let before = quota.callers();
        let parts = match self.settling() {
            true => {
                quota.record(claim, now);
                None
            }
            false => quota.claim(claim, whole, now),
        };
        let callers = quota.callers();
        limits.shares = (limits.shares + callers).saturating_sub(before);
        *most = (*most).max(callers as u64);
        if callers >= quota::MAX_CALLERS && parts.is_none() {
            self.shared.full.fetch_add(1, Relaxed);
        }
        parts
    }
}

fn name(demand: &v1::Demand) -> Result<Name, Invalid> {
    let service = ServiceName::new(&demand.service).map_err(|e| e.within("service"))?;
    if !demand.route.is_empty() {
        Label::new(&demand.route).map_err(|e| e.within("route"))?;
    }
    Ok((service, demand.route.clone()))
}

#[tonic::async_trait]
impl quota_server::Quota for Quotas {
    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Result<Response<v1::ClaimResponse>, Status> {
        let divided = self.divide(request.into_inner());
        divided.map(Response::new).map_err(|problem| Status::invalid_argument(problem.to_string()))
    }
}

#[cfg(test)]
mod tests;
