//! Claims this process's shares of mesh-wide rate limits.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fairmesh_model::{ServiceName, rate_limit_quota::ALL_PARTS};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_router::TokenBucket;
use fairmesh_wire::v1;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::subscription_registry::SubscriptionRegistry;
use crate::discovery::service_state::ServiceState;

/// Interval of checks for limits without any claim.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time between two claims. The control plane may request a longer time.
const CLAIM_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of the response to a claim.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of limits in one claim.
const MAX_LIMITS: usize = 1_000;

/// A service and a route of its policy. An empty route name stands for the policy's own limit.
type LimitName = (ServiceName, String);

/// Claims until `stop` is cancelled. If no control plane responds, the shares stay as they are.
pub(super) async fn claim_periodically<T>(
    registry: Arc<SubscriptionRegistry<T>>,
    upstream: FollowerHandle,
    caller: u64,
    stop: CancellationToken,
) {
    let mut claims = Claims { caller, known: HashMap::new() };
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut claimed, mut checked, mut interval) = (Instant::now(), Instant::now(), CLAIM_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let limits = registry.limits();
        let has_new = claims.note(&limits, checked);
        checked = Instant::now();
        if limits.is_empty() || (claimed.elapsed() < interval && !has_new) {
            continue;
        }
        claimed = Instant::now();
        match claims.claim(&upstream, &limits).await {
            Ok(next) => interval = next.max(CLAIM_INTERVAL),
            Err(why) => tracing::debug!(why, "a quota claim failed; the parts of limits stay as they are"),
        }
    }
}

/// The limits known so far, with their last claims.
struct Claims {
    caller: u64,
    known: HashMap<LimitName, LastClaim>,
}

/// Number of calls that a limit had counted at the time of its last claim.
struct LastClaim {
    bucket: Arc<TokenBucket>,
    requested: u64,
    at: Instant,
    /// Whether the limit was ever claimed.
    claimed: bool,
}

impl Claims {
    /// Adds limits that began after the last check, at `checked`, so that their first claim includes the demand since
    /// then. Returns whether any limit has no claim yet.
    fn note(&mut self, limits: &[(LimitName, Arc<TokenBucket>)], checked: Instant) -> bool {
        self.known.retain(|name, _| limits.iter().any(|(known, _)| known == name));
        for (name, bucket) in limits {
            if !self.known.get(name).is_some_and(|seen| Arc::ptr_eq(&seen.bucket, bucket)) {
                let seen =
                    LastClaim { bucket: Arc::clone(bucket), requested: 0, at: checked, claimed: false };
                self.known.insert(name.clone(), seen);
            }
        }
        self.known.values().any(|seen| !seen.claimed)
    }

    /// Sends one claim. Returns the time until the next one.
    async fn claim(
        &mut self,
        upstream: &FollowerHandle,
        limits: &[(LimitName, Arc<TokenBucket>)],
    ) -> Result<Duration, String> {
        let connection = upstream.connection().ok_or("there is no connection")?;
        let demands = limits.iter().map(|(name, bucket)| self.demand(name, bucket)).collect();
        let mut client = connection.quota();
        let claim = client.claim(v1::ClaimRequest { caller: self.caller, demands });
        let response = timeout(CLAIM_TIMEOUT, claim).await.map_err(|_| "the response timed out")?;
        let v1::ClaimResponse { parts, next_claim_ms } =
            response.map_err(|status| status.message().to_owned())?.into_inner();
        for ((_, bucket), granted) in limits.iter().zip(parts) {
            if let Some(parts) = granted.parts {
                bucket.set_parts(parts.min(ALL_PARTS));
            }
        }
        Ok(Duration::from_millis(next_claim_ms.into()))
    }

    /// Computes the demand since the last claim.
    fn demand(&mut self, (service, route): &LimitName, bucket: &Arc<TokenBucket>) -> v1::Demand {
        let (requested, at) = (bucket.requested(), Instant::now());
        let now = LastClaim { bucket: Arc::clone(bucket), requested, at, claimed: true };
        let before = self.known.insert((service.clone(), route.clone()), now);
        let rate = before.map_or(0, |before| {
            let millis = u64::try_from((at - before.at).max(CHECK_INTERVAL).as_millis()).unwrap_or(u64::MAX);
            requested.saturating_sub(before.requested).saturating_mul(1_000_000) / millis
        });
        v1::Demand {
            service: service.to_string(),
            route: route.clone(),
            millicalls_per_second: rate,
            held: bucket.parts(),
        }
    }
}

impl<T> SubscriptionRegistry<T> {
    /// Returns the mesh-wide limits of services in use.
    fn limits(&self) -> Vec<(LimitName, Arc<TokenBucket>)> {
        let limited: Vec<ServiceName> = self.rate_limited().iter().cloned().collect();
        let by_name = self.by_name();
        let limited = limited.iter().filter_map(|service| by_name.get_key_value(service));
        let limits = limited.flat_map(|(service, registered)| match &*registered.subscription.state() {
            ServiceState::Ready(ready) => {
                let named = |(route, bucket): (&str, &Arc<TokenBucket>)| {
                    ((service.clone(), route.to_owned()), Arc::clone(bucket))
                };
                ready.upstream.mesh_limits().map(named).collect()
            }
            _ => Vec::new(),
        });
        limits.take(MAX_LIMITS).collect()
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{
        Hosts, Location, Policy, Protocol, RateLimit, Region, Regions, RoundTrips, Scope, Service,
        ServiceKind, Verdicts,
    };
    use fairmesh_router::{CompileInput, RequestView, ServiceTable};

    use super::*;

    fn upstream(calls: u32, before: Option<&ServiceTable>) -> ServiceTable {
        let limit = RateLimit { calls, per: Duration::from_secs(1), burst: 1, scope: Scope::Mesh };
        let facts = CompileInput {
            name: &ServiceName::new("shop/one").unwrap(),
            service: &Service {
                kind: ServiceKind::Replicated,
                protocol: Protocol::Http1,
                virtual_address: None,
                identity: None,
            },
            policy: &Policy { limit: Some(limit), ..Policy::default() },
            endpoints: &[],
            shards: None,
            location: &Location::in_region(Region::new("eu").unwrap()),
            regions: &Regions::default(),
            round_trips: &RoundTrips::default(),
            table: None,
            hosts: &Hosts::default(),
            health: &Verdicts::default(),
            now: 0,
            client_id: "web-1",
            client: 1,
            requires_mtls: false,
            authorizes_callers: false,
        };
        ServiceTable::compile(&facts, &Arc::default(), before)
    }

    /// Makes this many calls. Returns the limit.
    fn called(upstream: &ServiceTable, times: u32) -> Vec<(LimitName, Arc<TokenBucket>)> {
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        for _ in 0..times {
            let _ = upstream.admit(&upstream.route(&request, 0), 0);
        }
        let name = ServiceName::new("shop/one").unwrap();
        let named = |(route, bucket): (&str, &Arc<TokenBucket>)| {
            ((name.clone(), route.to_owned()), Arc::clone(bucket))
        };
        upstream.mesh_limits().map(named).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn first_quota_claim_includes_demand_since_rate_limit_began() {
        let mut claims = Claims { caller: 1, known: HashMap::new() };
        let mut rate = |limits: &[(LimitName, Arc<TokenBucket>)], checked, new| {
            assert_eq!(claims.note(limits, checked), new);
            claims.demand(&limits[0].0, &limits[0].1).millicalls_per_second
        };
        let (first, began) = (upstream(10, None), Instant::now());
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(rate(&called(&first, 50), began, true), 100_000);
        tokio::time::advance(CLAIM_INTERVAL).await;
        assert_eq!(rate(&called(&first, 20), began, false), 10_000);
        // The policy changes.
        let (second, checked) = (upstream(20, Some(&first)), Instant::now());
        tokio::time::advance(CLAIM_INTERVAL).await;
        assert_eq!(rate(&called(&second, 60), checked, true), 30_000, "it was noticed late");
    }
}
