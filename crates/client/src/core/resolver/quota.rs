//! Asks which part of the limits of a whole mesh is this program's own.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use fairmesh_model::{ServiceName, quota::ALL_PARTS};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_router::TokenBucket;
use fairmesh_wire::v1;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{Registered, View};

/// How often it is looked whether there is anything to ask.
const LOOK: Duration = Duration::from_millis(500);
/// How often it is asked unless the control plane wants it less often.
const PERIOD: Duration = Duration::from_secs(2);
/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limits in one question.
const MOST: usize = 1_000;

/// A service, and the route of its policy; empty is the policy itself.
type Name = (ServiceName, String);

/// Asks until told to stop. Where nobody answers, the parts stay as they are.
pub(super) async fn ask<L>(
    registered: Arc<Registered<L>>,
    upstream: FollowerHandle,
    caller: u64,
    stop: CancellationToken,
) {
    let mut claims = Claims { caller, known: HashMap::new() };
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut asked, mut looked, mut period) = (Instant::now(), Instant::now(), PERIOD);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let limits = registered.limits();
        let news = claims.note(&limits, looked);
        looked = Instant::now();
        if limits.is_empty() || (asked.elapsed() < period && !news) {
            continue;
        }
        asked = Instant::now();
        match claims.make(&upstream, &limits).await {
            Ok(again) => period = again.max(PERIOD),
            Err(why) => tracing::debug!(why, "no part of a limit of the mesh was told; it stays as it is"),
        }
    }
}

/// What was seen and asked for before.
struct Claims {
    caller: u64,
    known: HashMap<Name, Seen>,
}

/// How many calls a limit had counted, and when that was.
struct Seen {
    bucket: Arc<TokenBucket>,
    asked: u64,
    at: Instant,
    /// Whether it was ever asked about.
    claimed: bool,
}

impl Claims {
    /// Takes down what began after the last look, at `looked`, so that a first claim says what was asked for since; whether any
    /// was never asked about.
    fn note(&mut self, limits: &[(Name, Arc<TokenBucket>)], looked: Instant) -> bool {
        self.known.retain(|name, _| limits.iter().any(|(known, _)| known == name));
        for (name, bucket) in limits {
            if !self.known.get(name).is_some_and(|seen| Arc::ptr_eq(&seen.bucket, bucket)) {
                let seen = Seen { bucket: Arc::clone(bucket), asked: 0, at: looked, claimed: false };
                self.known.insert(name.clone(), seen);
            }
        }
        self.known.values().any(|seen| !seen.claimed)
    }

    /// Asks once; when to ask again.
    async fn make(
        &mut self,
        upstream: &FollowerHandle,
        limits: &[(Name, Arc<TokenBucket>)],
    ) -> Result<Duration, String> {
        let connection = upstream.connection().ok_or("nobody is connected to")?;
        let demands = limits.iter().map(|(name, bucket)| self.demand(name, bucket)).collect();
        let mut client = connection.quota();
        let question = client.claim(v1::ClaimRequest { caller: self.caller, demands });
        let answer = timeout(PATIENCE, question).await.map_err(|_| "the answer took too long")?;
        let v1::ClaimResponse { parts, next_claim_ms } =
            answer.map_err(|status| status.message().to_owned())?.into_inner();
        for ((_, bucket), told) in limits.iter().zip(parts) {
            if let Some(parts) = told.parts {
                bucket.set_parts(parts.min(ALL_PARTS));
            }
        }
        Ok(Duration::from_millis(next_claim_ms.into()))
    }

    /// What was asked for since the last time.
    fn demand(&mut self, (service, route): &Name, bucket: &Arc<TokenBucket>) -> v1::Demand {
        let (asked, at) = (bucket.requested(), Instant::now());
        let now = Seen { bucket: Arc::clone(bucket), asked, at, claimed: true };
        let before = self.known.insert((service.clone(), route.clone()), now);
        let rate = before.map_or(0, |before| {
            let millis = u64::try_from((at - before.at).max(LOOK).as_millis()).unwrap_or(u64::MAX);
            asked.saturating_sub(before.asked).saturating_mul(1_000_000) / millis
        });
        v1::Demand {
            service: service.to_string(),
            route: route.clone(),
            millicalls_per_second: rate,
            held: bucket.parts(),
        }
    }
}

impl<L> Registered<L> {
    /// The limits of services in use that hold for the whole mesh.
    fn limits(&self) -> Vec<(Name, Arc<TokenBucket>)> {
        let limited: Vec<ServiceName> = self.limited().iter().cloned().collect();
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let limited = limited.iter().filter_map(|service| by_name.get_key_value(service));
        let limits = limited.flat_map(|(service, listed)| match &*listed.subscription.view() {
            View::Ready(ready) => {
                let named = |(route, bucket): (&str, &Arc<TokenBucket>)| {
                    ((service.clone(), route.to_owned()), Arc::clone(bucket))
                };
                ready.upstream.mesh_limits().map(named).collect()
            }
            _ => Vec::new(),
        });
        limits.take(MOST).collect()
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
            },
            policy: &Policy { limit: Some(limit), ..Policy::default() },
            endpoints: &[],
            shards: None,
            location: &Location::in_region(Region::new("eu").unwrap()),
            regions: &Regions::default(),
            round_trips: &RoundTrips::default(),
            hosts: &Hosts::default(),
            health: &Verdicts::default(),
            client_id: "web-1",
            client: 1,
        };
        ServiceTable::compile(&facts, &Arc::default(), before)
    }

    /// Calls so many times; the limit then.
    fn called(upstream: &ServiceTable, times: u32) -> Vec<(Name, Arc<TokenBucket>)> {
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
    async fn a_first_claim_says_what_was_asked_for_since_the_limit_began() {
        let mut claims = Claims { caller: 1, known: HashMap::new() };
        let mut rate = |limits: &[(Name, Arc<TokenBucket>)], looked, new| {
            assert_eq!(claims.note(limits, looked), new);
            claims.demand(&limits[0].0, &limits[0].1).millicalls_per_second
        };
        let (first, began) = (upstream(10, None), Instant::now());
        tokio::time::advance(LOOK).await;
        assert_eq!(rate(&called(&first, 50), began, true), 100_000);
        tokio::time::advance(PERIOD).await;
        assert_eq!(rate(&called(&first, 20), began, false), 10_000);
        // The policy changes.
        let (second, looked) = (upstream(20, Some(&first)), Instant::now());
        tokio::time::advance(PERIOD).await;
        assert_eq!(rate(&called(&second, 60), looked, true), 30_000, "it was away, and saw it late");
    }
}
