//! Servers are asked for their load where nothing recent is known of it (S26), so that a program which calls seldom knows as
//! much of a server that others keep busy as those do.
//!
//! Calls never wait for that, so what a question finds out serves the calls after it. One try in 20 ms of each service does
//! the work: when it has its answer, a task looks at some of the endpoints that calls could go to, others each time, and asks the
//! two of them of which nothing has been heard for the longest. All handles and callers of a mesh share the try, the task and what
//! is learnt. So what is asked is bounded by what is called, one question for ten tries, and by a hundred questions a second and
//! service, and a program that calls nobody asks nobody.
//!
//! Two a survey, since ServiceRouter asks the two candidates of a call. Rejected: asking those two before the call, as it does, for
//! the call would wait; a task that wakes up all the time, which costs a program that is idle; a flag that each pick sets, which
//! would cost every call a write.

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_balancer::{Estimate, Freshness, estimate};
use fairmesh_model::{BalancingPolicy, Score};
use fairmesh_router::LoadReport;
use futures_util::future::join_all;
use http::{
    HeaderMap, Method, response,
    uri::{Authority, PathAndQuery},
};
use tokio::time::timeout;

use crate::{
    core::{Clock, Ready, Subscription, View, nanos},
    headers::{LOAD, LOAD_PATH, load_from_text},
    mesh::Shared,
    service::authority,
    stats::{Counters, count},
    transport::{Claim, Head, Line, Outgoing, Request},
};

/// From survey to survey of a service, in nanoseconds: what bounds questions where tries are so frequent that they pay for more than
/// a hundred a second. Programs that call seldom, which have most use for questions, would gain nothing by a shorter time, since
/// each survey follows a call.
pub(crate) const EVERY: u64 = 20_000_000;
/// Endpoints that one survey looks at: more than a usual subset has, and few where one is all of a fleet.
const WINDOW: usize = 32;
/// Servers that one survey asks.
const AT_ONCE: usize = 2;
/// How long an answer may take: whoever is near and needs longer has other things to do.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a question that nobody waits for any more may go on: given up, it would close its connection, and a server that has
/// too much to do would have another one to set up.
const LINGER: Duration = Duration::from_secs(3);
/// How long a server is left alone that did not answer: longer than the question lingers, so that there is one at most.
const AFTER_SILENCE: Duration = Duration::from_secs(5);
/// How long one is left alone that answers something else: it is not Fairmesh's server layer, and only a new release of it
/// would be.
const AFTER_NONSENSE: Duration = Duration::from_secs(10 * 60);

/// Looks at endpoints.
struct Survey<'a> {
    service: &'a Subscription<Arc<Line>>,
    ready: &'a Ready<Arc<Line>>,
    score: Score,
    counters: &'a Counters,
    /// How long servers work on a request, in nanoseconds.
    work: u64,
    now: u64,
}

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
    if polled(&view).is_none() {
        return;
    }
    let clock = mesh.clock;
    let now = clock.now();
    let work = service.worked((now - began).saturating_sub(line.asked().round_trip(now)));
    let (service, counters) = (Arc::clone(service), Arc::clone(&mesh.counters));
    tokio::spawn(async move {
        let Some((ready, score)) = polled(&view) else { return };
        let now = clock.now();
        let survey = Survey { service: &service, ready, score, counters: &counters, work, now };
        let chosen = survey.look();
        if chosen.is_empty() {
            return;
        }
        let authority = authority(service.name());
        // Nothing else of the service is kept while servers are asked.
        drop((service, view));
        join_all(chosen.into_iter().map(|(line, claim)| ask(line, claim, authority.clone(), clock))).await;
    });
}

/// What to go by, where load reports decide and servers may be asked for them.
fn polled(view: &View<Arc<Line>>) -> Option<(&Ready<Arc<Line>>, Score)> {
    let View::Ready(ready) = view else { return None };
    let balancing = &ready.upstream.policy().balancing;
    let polled = balancing.policy == BalancingPolicy::Score && balancing.score.poll;
    polled.then_some((ready, balancing.score))
}

/// Those of `all` that are looked at from a place on, wrapping around.
fn window<T>(all: &[T], from: usize) -> impl Iterator<Item = &T> {
    let (before, after) = all.split_at(from % all.len().max(1));
    after.iter().chain(before).take(WINDOW)
}

impl Survey<'_> {
    /// Counts how what is known of each endpoint came about, and claims those that are to be asked.
    fn look(&self) -> Vec<(Arc<Line>, Claim)> {
        let mut near = Vec::new();
        for &index in window(self.ready.upstream.nearest(), self.service.survey_from(WINDOW)) {
            match self.judge(index) {
                (Estimate::Poll, Some((line, heard))) => near.push((heard, line)),
                (estimate, _) => self.counters.estimates.count(estimate),
            }
        }
        near.sort_unstable_by_key(|(heard, _)| *heard);
        let mut chosen = Vec::with_capacity(AT_ONCE);
        for (_, line) in near {
            let claim = if chosen.len() < AT_ONCE { line.asked().claim() } else { None };
            match claim.filter(|_| self.service.allowance().spend()) {
                Some(claim) => chosen.push((Arc::clone(line), claim)),
                None => self.counters.estimates.count(Estimate::Random),
            }
        }
        chosen
    }

    /// Where an endpoint's load is known from; where it may be asked, its line, and when it was heard of last.
    fn judge(&self, index: u32) -> (Estimate, Option<(&Arc<Line>, u64)>) {
        let slots = self.service.slots();
        let (Some(reported), Some(line)) = (slots.reported(index), self.ready.open_lane(index)) else {
            // Whoever never reported is not asked: most servers know nothing of all this.
            return (Estimate::Random, None);
        };
        let asked = line.asked();
        let known = Freshness {
            // A report dated later than now was read by another thread a moment ago.
            age: Some(self.now.saturating_sub(reported.at)),
            round_trip: Some(asked.round_trip(self.now)),
            work: self.work,
        };
        match estimate(&self.score, known) {
            Estimate::Cached if asked.has_told(&reported) => (Estimate::Poll, None),
            Estimate::Cached => (Estimate::Cached, None),
            // One that is avoided for its failures gets no calls, and none needs its load.
            Estimate::Poll
                if asked.is_free(self.now)
                    && slots.penalised_until(index) <= self.now
                    && line.is_connected() =>
            {
                (Estimate::Poll, Some((line, reported.at)))
            }
            Estimate::Poll | Estimate::Random => (Estimate::Random, None),
        }
    }
}

/// Asks one server. Whatever comes of it, no call, no try and no failure is counted: calls find out about servers that fail.
async fn ask(line: Arc<Line>, claim: Claim, authority: Authority, clock: Clock) {
    let estimates = &line.counters().estimates;
    let began = clock.now();
    let mut answer = pin!(line.ask(question(authority)));
    let Ok(answer) = timeout(PATIENCE, answer.as_mut()).await else {
        estimates.count(Estimate::Poll);
        claim.end(clock.now() + nanos(AFTER_SILENCE));
        // What it says by then is old.
        let _ = timeout(LINGER, answer).await;
        return;
    };
    let now = clock.now();
    let (estimate, respite) = match answer {
        Some(Ok(head)) => {
            line.asked().took(now - began, now);
            (Estimate::Poll, learn(&line, &head, now))
        }
        Some(Err(_)) => (Estimate::Poll, AFTER_SILENCE),
        // Its connection went to a call a moment ago, whose answer tells as much.
        None => (Estimate::Random, Duration::ZERO),
    };
    estimates.count(estimate);
    claim.end(now + nanos(respite));
}

fn question(authority: Authority) -> Request {
    let head = Head {
        method: Method::GET,
        authority,
        path: PathAndQuery::from_static(LOAD_PATH),
        headers: HeaderMap::new(),
        grpc: false,
    };
    Request { head, body: Outgoing::empty(), left: PATIENCE }
}

/// Keeps what a server answered; says for how long to leave it alone.
fn learn(line: &Line, answer: &response::Parts, now: u64) -> Duration {
    let metric = line.target().metric.as_deref();
    match answer.headers.get(&LOAD).map(|value| load_from_text(value.as_bytes(), metric)) {
        // It was taken out meanwhile, and its place among the endpoints may be another's.
        Some(Some(_)) if line.is_retired() => Duration::ZERO,
        Some(Some(load)) if load != LoadReport::default() => {
            line.asked().told(now);
            line.endpoint().report_asked(load, now);
            Duration::ZERO
        }
        Some(None) => {
            count(&line.counters().reports_ignored);
            AFTER_NONSENSE
        }
        // Busy, or about to go.
        None if answer.status.is_server_error() => AFTER_SILENCE,
        Some(Some(_)) | None => AFTER_NONSENSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_looks_at_few_and_the_next_goes_on_from_there() {
        let all: Vec<usize> = (0..100).collect();
        let surveys = (0..4).flat_map(|survey| window(&all, survey * WINDOW)).copied();
        assert!(surveys.eq((0..4 * WINDOW).map(|place| place % 100)), "in turn, and around");
        assert!(window(&all[..5], usize::MAX).count() == 5 && window::<u8>(&[], 7).next().is_none());
    }
}
