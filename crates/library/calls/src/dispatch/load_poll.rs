//! Polls servers for their load over open connections (ServiceRouter §3.4.3). [`fairmesh_balancer::poll`] decides when
//! to poll, and which servers. A task spawned by a call does the polling, so that the call never waits for it.

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_balancer::load_poll::{
    Estimate, NO_RESPONSE_BACKOFF, POLL_TIMEOUT, PollGuard, PollRound, PollTarget, UNSUPPORTED_BACKOFF,
    polling_config,
};
use fairmesh_connections::{EndpointPool, Head, Request, RequestBody};
use fairmesh_headers::{LOAD, LOAD_PATH, load_from_text};
use fairmesh_model::Score;
use fairmesh_router::LoadReport;
use http::{
    HeaderMap, Method,
    response::Parts,
    uri::{Authority, PathAndQuery},
};
use tokio::time::timeout;

use crate::{
    call::Clock,
    discovery::{ReadyService, ServiceState, Subscription},
    mesh::state::MeshState,
    observe::count,
    service::handle::service_authority,
};

/// [`POLL_TIMEOUT`] as a duration.
const TIMEOUT: Duration = Duration::from_nanos(POLL_TIMEOUT);
/// Time for which a poll continues after its timeout. Cancelling the poll would close its connection, and an
/// overloaded server would have to accept another one. Shorter than [`NO_RESPONSE_BACKOFF`], so that a server has at
/// most one poll in flight.
const LINGER: Duration = Duration::from_secs(3);

/// Spawns a round of polling after an attempt that was decided at `began` and has just received its response.
#[cold]
pub(super) fn spawn_round(
    mesh: &MeshState,
    service: &Arc<Subscription<Arc<EndpointPool>>>,
    pool: &EndpointPool,
    began: u64,
) {
    let state = service.state();
    if polled_score(&state).is_none() {
        return;
    }
    let clock = mesh.clock;
    let now = clock.now();
    let service_time = service
        .poll_limiter
        .record_service_time((now - began).saturating_sub(pool.poll_state().round_trip(now)));
    let (service, counters) = (Arc::clone(service), Arc::clone(&mesh.counters));
    tokio::spawn(async move {
        let Some((ready, score)) = polled_score(&state) else { return };
        let round = PollRound {
            limiter: &service.poll_limiter,
            stats: service.endpoint_stats(),
            score,
            estimates: &counters.pools.estimates,
            service_time,
            now: clock.now(),
        };
        let pool = |index| ready.opened_transport(index);
        let targets = round.select_targets(ready.upstream.nearest(), |index| pool(index).map(Arc::as_ref));
        let with_pool = |(index, guard)| pool(index).map(|pool| (Arc::clone(pool), guard));
        let targets: Vec<_> = targets.into_iter().filter_map(with_pool).collect();
        if targets.is_empty() {
            return;
        }
        let authority = service_authority(service.name());
        // The service must not be kept alive while servers are polled.
        drop((service, state));
        for (pool, guard) in targets {
            tokio::spawn(poll(pool, guard, authority.clone(), clock));
        }
    });
}

/// The snapshot and the score that decides which servers are polled; `None` if the policy disables polling.
fn polled_score(
    state: &ServiceState<Arc<EndpointPool>>,
) -> Option<(&ReadyService<Arc<EndpointPool>>, Score)> {
    let ServiceState::Ready(ready) = state else { return None };
    polling_config(&ready.upstream.policy().balancing).map(|score| (ready, score))
}

/// Polls one server. The result counts as no call, attempt or failure, because calls themselves detect failing
/// servers.
async fn poll(pool: Arc<EndpointPool>, guard: PollGuard, authority: Authority, clock: Clock) {
    let estimates = &pool.counters().estimates;
    let began = clock.now();
    let mut response = pin!(pool.poll_load(load_request(authority)));
    let Ok(response) = timeout(TIMEOUT, response.as_mut()).await else {
        estimates.count(Estimate::Poll);
        guard.finish(clock.now() + NO_RESPONSE_BACKOFF);
        // A report that arrives later is outdated.
        let _ = timeout(LINGER, response).await;
        return;
    };
    let now = clock.now();
    let (estimate, backoff) = match response {
        Some(Ok(head)) => {
            pool.poll_state().record_round_trip(now - began, now);
            (Estimate::Poll, record_report(&pool, &head, now))
        }
        Some(Err(_)) => (Estimate::Poll, NO_RESPONSE_BACKOFF),
        // A call has just taken the connection. The response to that call reports the load as well.
        None => (Estimate::Random, 0),
    };
    estimates.count(estimate);
    guard.finish(now + backoff);
}

fn load_request(authority: Authority) -> Request {
    let head = Head {
        method: Method::GET,
        authority,
        path: PathAndQuery::from_static(LOAD_PATH).into(),
        headers: HeaderMap::new(),
        grpc: false,
    };
    Request { head, body: RequestBody::empty(), left: Some(TIMEOUT) }
}

/// Records the report in a response. Returns how long not to poll the server, in nanoseconds.
fn record_report(pool: &EndpointPool, response: &Parts, now: u64) -> u64 {
    let metric = pool.target().metric.as_deref();
    match response.headers.get(&LOAD).map(|value| load_from_text(value.as_bytes(), metric)) {
        // The endpoint was removed meanwhile, and its index may belong to another endpoint.
        Some(Some(_)) if pool.is_retired() => 0,
        Some(Some(load)) if load != LoadReport::default() => {
            pool.endpoint().record_polled_report(pool.poll_state(), load, now);
            0
        }
        Some(None) => {
            count(&pool.counters().reports_ignored);
            UNSUPPORTED_BACKOFF
        }
        // The server is overloaded or about to stop.
        None if response.status.is_server_error() => NO_RESPONSE_BACKOFF,
        Some(Some(_)) | None => UNSUPPORTED_BACKOFF,
    }
}
