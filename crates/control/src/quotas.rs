//! Divides the limits that hold for a whole mesh among those who call.
//!
//! In memory, and by question and answer: what changes every few seconds and concerns one caller is no record, which would be
//! written to disk and sent to everybody who watches. After a restart callers say what they hold, and for a few seconds nobody
//! gets more than that. One caller asks every two seconds; where there are many, less often, so that all together ask no more
//! than [`CLAIMS`] times a second.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Invalid, Label, ServiceName, quota};
use fairmesh_wire::v1::{self, quota_server};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// How often a caller asks.
const PERIOD: Duration = Duration::from_secs(2);
/// How many claims a second are wanted at most.
const CLAIMS: u64 = 1_000;
/// For how long after a start nobody gets more than it has; where callers are so many that they ask seldom, up to the second,
/// which is longer than any of them waits.
const SETTLING: Duration = Duration::from_secs(6);
const LONG_SETTLING: Duration = Duration::from_secs(12);
/// Limits that are divided; others are not.
const MOST_LIMITS: usize = 10_000;
/// Limits in one claim.
const MOST_DEMANDS: usize = 1_000;

/// A service, and the route of its policy; empty is the policy itself.
type Name = (ServiceName, String);

/// Every limit that is divided.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// The longest that any was told to wait, in milliseconds.
    longest: AtomicU64,
    limits: Mutex<BTreeMap<Name, quota::Quota>>,
}

impl Default for Quotas {
    fn default() -> Self {
        let (began, longest, limits) = (Instant::now(), AtomicU64::default(), Mutex::default());
        Self { shared: Arc::new(Shared { began, longest, limits }) }
    }
}

impl Quotas {
    /// How many limits are divided, and among how many callers each in turn.
    pub(crate) fn size(&self) -> (usize, usize) {
        let limits = self.lock();
        (limits.len(), limits.values().map(quota::Quota::callers).sum())
    }

    /// Forgets what nobody asks for any more, for ever.
    pub(crate) async fn sweep(self) {
        let mut ticks = tokio::time::interval(SETTLING);
        loop {
            ticks.tick().await;
            let now = self.now();
            self.lock().retain(|_, quota| quota.expire(now));
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether callers may hold parts that they have not told of yet. Those of a limit ask evenly over the longest time that they
    /// wait: of whom half that time has passed, more than half have asked, which tells how long it is.
    fn settling(&self) -> bool {
        let longest = Duration::from_millis(2 * self.shared.longest.load(Relaxed));
        self.shared.began.elapsed() < longest.clamp(SETTLING, LONG_SETTLING)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, quota::Quota>> {
        self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn divide(&self, request: v1::ClaimRequest) -> Result<v1::ClaimResponse, Invalid> {
        let v1::ClaimRequest { caller, demands } = request;
        if demands.len() > MOST_DEMANDS {
            let problem = format!("{} are too many", demands.len());
            return Err(Invalid::new("demands", problem, format!("send at most {MOST_DEMANDS}")));
        }
        let named = demands.into_iter().enumerate().map(|(i, demand)| {
            let name = name(&demand).map_err(|e| e.within(format!("demands[{i}]")))?;
            Ok((name, demand))
        });
        let named = named.collect::<Result<Vec<_>, Invalid>>()?;
        let (now, settling) = (self.now(), self.settling());
        let (mut limits, mut most) = (self.lock(), 0);
        let parts = named.into_iter().map(|(name, demand)| {
            if !limits.contains_key(&name) && limits.len() >= MOST_LIMITS {
                return v1::Part { parts: None };
            }
            let quota = limits.entry(name).or_default();
            let claim = quota::Claim { caller, demand: demand.millicalls_per_second, held: demand.held };
            let parts = quota.claim(claim, settling, now);
            most = most.max(quota.callers() as u64);
            v1::Part { parts }
        });
        let parts = parts.collect();
        let spread = Duration::from_millis(most * 1_000 / CLAIMS);
        self.shared.longest.fetch_max(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let again_ms = u32::try_from(PERIOD.max(spread).as_millis()).unwrap_or(u32::MAX);
        Ok(v1::ClaimResponse { parts, again_ms })
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
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_start_nobody_gets_more_than_it_has_until_those_who_ask_seldom_have_asked() {
        for (callers, settled) in [(10, SETTLING), (6_000, LONG_SETTLING)] {
            let quotas = Quotas::default();
            let ask = |caller, held| {
                let service = "shop/one".to_owned();
                let demand = v1::Demand { service, route: String::new(), millicalls_per_second: 1, held };
                quotas.divide(v1::ClaimRequest { caller, demands: vec![demand] }).unwrap().parts[0].parts
            };
            for caller in 0..callers {
                ask(caller, Some(1_000));
            }
            tokio::time::advance(settled - Duration::from_millis(1)).await;
            assert_eq!(ask(0, Some(1_000)), Some(1_000));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(ask(0, Some(1_000)) > Some(1_000), "{callers} callers");
        }
    }
}
