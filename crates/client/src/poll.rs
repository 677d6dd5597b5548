//! Asks servers for their load over connections that are open already (ServiceRouter §3.4.3). When, and whom, is decided by
//! [`fairmesh_balancer::poll`]; a task that a call leaves behind does the work, so that the call never waits for it.

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_balancer::poll::{
    Estimate, NO_RESPONSE_BACKOFF, POLL_TIMEOUT, PollGuard, PollRound, PollState, PollTarget,
    UNSUPPORTED_BACKOFF, polling_config,
};
use fairmesh_model::Score;
use fairmesh_router::LoadReport;
use futures_util::future::join_all;
use http::{
    HeaderMap, Method, response,
    uri::{Authority, PathAndQuery},
};
use tokio::time::timeout;

use crate::{
    core::{Clock, Ready, Subscription, View},
    mesh::Shared,
    service::authority,
    stats::count,
    transport::{Head, Line, Outgoing, Request},
};
use fairmesh_headers::{LOAD, LOAD_PATH, load_from_text};

/// [`POLL_TIMEOUT`] as a duration.
const PATIENT: Duration = Duration::from_nanos(POLL_TIMEOUT);
/// How long a question that nobody waits for any more may go on: given up, it would close its connection, and a server that has
/// too much to do would have another one to set up. Shorter than a silent server is left alone, so that there is one at most.
const LINGER: Duration = Duration::from_secs(3);

/// What follows an answered try that began then, where it is one of those that are followed by a survey.
#[inline]
pub(crate) fn follow(
    surveyed: Option<u64>,
    mesh: &Shared,
    service: &Arc<Subscription<Arc<Line>>>,
    line: &Line,
) {
    if let Some(began) = surveyed {
        survey(mesh, service, line, began);
    }
}

/// Looks in a task of its own at the endpoints of a service, after a try that took from `began` until now for its answer.
#[cold]
fn survey(mesh: &Shared, service: &Arc<Subscription<Arc<Line>>>, line: &Line, began: u64) {
    let view = service.view();
    if scored(&view).is_none() {
        return;
    }
    let clock = mesh.clock;
    let now = clock.now();
    let service_time = service
        .poll_limiter
        .record_service_time((now - began).saturating_sub(line.poll_state().round_trip(now)));
    let (service, counters) = (Arc::clone(service), Arc::clone(&mesh.counters));
    tokio::spawn(async move {
        let Some((ready, score)) = scored(&view) else { return };
        let (endpoint_stats, estimates) = (service.endpoint_stats(), &counters.estimates);
        let round = PollRound {
            limiter: &service.poll_limiter,
            stats: endpoint_stats,
            score,
            estimates,
            service_time,
            now: clock.now(),
        };
        let server = |index| ready.open_lane(index);
        let chosen = round.select_targets(ready.upstream.nearest(), |index| server(index).map(Arc::as_ref));
        let line = |(index, guard)| server(index).map(|line| (Arc::clone(line), guard));
        let chosen: Vec<_> = chosen.into_iter().filter_map(line).collect();
        if chosen.is_empty() {
            return;
        }
        let authority = authority(service.name());
        // Nothing else of the service is kept while servers are asked.
        drop((service, view));
        join_all(chosen.into_iter().map(|(line, guard)| ask(line, guard, authority.clone(), clock))).await;
    });
}

/// What to go by, where there is anything to ask for.
fn scored(view: &View<Arc<Line>>) -> Option<(&Ready<Arc<Line>>, Score)> {
    let View::Ready(ready) = view else { return None };
    polling_config(&ready.upstream.policy().balancing).map(|score| (ready, score))
}

impl PollTarget for Line {
    fn poll_state(&self) -> &Arc<PollState> {
        Line::poll_state(self)
    }

    fn is_connected(&self) -> bool {
        Line::is_connected(self)
    }
}

/// Asks one server. Whatever comes of it, no call, no try and no failure is counted: calls find out about servers that fail.
async fn ask(line: Arc<Line>, guard: PollGuard, authority: Authority, clock: Clock) {
    let estimates = &line.counters().estimates;
    let began = clock.now();
    let mut answer = pin!(line.ask(question(authority)));
    let Ok(answer) = timeout(PATIENT, answer.as_mut()).await else {
        estimates.count(Estimate::Poll);
        guard.finish(clock.now() + NO_RESPONSE_BACKOFF);
        // What it says by then is old.
        let _ = timeout(LINGER, answer).await;
        return;
    };
    let now = clock.now();
    let (estimate, respite) = match answer {
        Some(Ok(head)) => {
            line.poll_state().record_round_trip(now - began, now);
            (Estimate::Poll, learn(&line, &head, now))
        }
        Some(Err(_)) => (Estimate::Poll, NO_RESPONSE_BACKOFF),
        // Its connection went to a call a moment ago, whose answer tells as much.
        None => (Estimate::Random, 0),
    };
    estimates.count(estimate);
    guard.finish(now + respite);
}

fn question(authority: Authority) -> Request {
    let head = Head {
        method: Method::GET,
        authority,
        path: PathAndQuery::from_static(LOAD_PATH).into(),
        headers: HeaderMap::new(),
        grpc: false,
    };
    Request { head, body: Outgoing::empty(), left: Some(PATIENT) }
}

/// Keeps what a server answered; says for how long to leave it alone.
fn learn(line: &Line, answer: &response::Parts, now: u64) -> u64 {
    let metric = line.target().metric.as_deref();
    match answer.headers.get(&LOAD).map(|value| load_from_text(value.as_bytes(), metric)) {
        // It was taken out meanwhile, and its place among the endpoints may be another's.
        Some(Some(_)) if line.is_retired() => 0,
        Some(Some(load)) if load != LoadReport::default() => {
            line.endpoint().told(line.poll_state(), load, now);
            0
        }
        Some(None) => {
            count(&line.counters().reports_ignored);
            UNSUPPORTED_BACKOFF
        }
        // Busy, or about to go.
        None if answer.status.is_server_error() => NO_RESPONSE_BACKOFF,
        Some(Some(_)) | None => UNSUPPORTED_BACKOFF,
    }
}
