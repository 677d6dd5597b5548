//! Servers are asked for their load where nothing recent is known of it (S26), so that a program which calls seldom knows as
//! much of a server that others keep busy as those do.
//!
//! Calls never wait for that, so what a question finds out serves the calls after it. One try in 20 ms of each service does
//! the work: when it has its answer, a task looks at all endpoints that calls could go to and asks the two of which nothing
//! has been heard for the longest. All handles and callers of a mesh share the try, the task and what is learnt. So what is asked is
//! bounded by what is called, and by a hundred questions a second and service, and a program that calls nobody asks nobody.
//!
//! Two a survey, since ServiceRouter asks the two candidates of a call. Rejected: asking those two before the call, as it does, for
//! the call would wait; a task that wakes up all the time, which costs a program that is idle; a flag that each pick sets,
//! which would cost every call a write.

use std::{sync::Arc, time::Duration};

use fairmesh_balancer::{Estimate, estimate};
use fairmesh_model::BalancingPolicy;
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
    stats::Counters,
    transport::{Head, Line, Outgoing, Reply, Request, SendError},
};

/// From survey to survey of a service, in nanoseconds. Shorter ones find out more and ask more often: with five milliseconds, what is
/// known of a server is about half as old in a program of 300 calls a second, for three times as many questions. Programs that call
/// seldom, which have most use for it, gain nothing by it, since each survey follows a call.
pub(crate) const EVERY: u64 = 20_000_000;
/// Servers that one survey asks.
const AT_ONCE: usize = 2;
/// How long an answer may take: whoever is near and needs longer has other things to do.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long a server is left alone that did not answer.
const AFTER_SILENCE: Duration = Duration::from_secs(5);
/// How long one is left alone that answers something else: it is not Fairmesh's server layer, and only a new release of it
/// would be.
const AFTER_NONSENSE: Duration = Duration::from_secs(10 * 60);

/// What a survey counts with.
struct Survey<'a> {
    service: &'a Subscription<Arc<Line>>,
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
    let clock = mesh.clock;
    let now = clock.now();
    let work = service.worked((now - began).saturating_sub(line.asked().round_trip(now)));
    let (service, counters) = (Arc::clone(service), Arc::clone(&mesh.counters));
    tokio::spawn(async move {
        let now = clock.now();
        let chosen = Survey { service: &service, counters: &counters, work, now }.look();
        let authority = authority(service.name());
        // Nothing else of the service is kept while servers are asked.
        drop(service);
        join_all(chosen.into_iter().map(|line| ask(line, authority.clone(), clock))).await;
    });
}

impl Survey<'_> {
    /// Counts how what is known of each endpoint came about, and claims those that are to be asked.
    fn look(&self) -> Vec<Arc<Line>> {
        let view = self.service.view();
        let View::Ready(ready) = &*view else { return Vec::new() };
        let balancing = &ready.upstream.policy().balancing;
        if balancing.policy != BalancingPolicy::Score {
            return Vec::new();
        }
        let mut near = Vec::new();
        for &index in ready.upstream.nearest() {
            match self.judge(ready, index) {
                (Estimate::Poll, Some((line, heard))) => near.push((heard, line)),
                (estimate, _) => self.counters.estimates.count(estimate),
            }
        }
        near.sort_unstable_by_key(|(heard, _)| *heard);
        let mut chosen = Vec::new();
        for (_, line) in near {
            if balancing.score.poll && chosen.len() < AT_ONCE && line.asked().begin() {
                self.counters.estimates.count(Estimate::Poll);
                chosen.push(Arc::clone(line));
            } else {
                self.counters.estimates.count(Estimate::Random);
            }
        }
        chosen
    }

    /// Where an endpoint's load is known from; where it may be asked, its line, and when it was heard of last.
    fn judge<'r>(&self, ready: &'r Ready<Arc<Line>>, index: u32) -> (Estimate, Option<(&'r Arc<Line>, u64)>) {
        let slots = self.service.slots();
        let (Some(reported), Some(line)) = (slots.reported(index), ready.open_lane(index)) else {
            // Whoever never reported is not asked: most servers know nothing of all this.
            return (Estimate::Random, None);
        };
        let asked = line.asked();
        match estimate(self.now, Some(reported.at), Some(asked.round_trip(self.now)), self.work) {
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
async fn ask(line: Arc<Line>, authority: Authority, clock: Clock) {
    let began = clock.now();
    let answer = timeout(PATIENCE, question(&line, authority)).await;
    let now = clock.now();
    let respite = match answer {
        Ok(Some(Ok(head))) => {
            line.asked().took(now - began, now);
            learn(&line, &head, now)
        }
        // Its connection went to a call a moment ago, whose answer tells as much.
        Ok(None) => Duration::ZERO,
        Ok(Some(Err(_))) | Err(_) => AFTER_SILENCE,
    };
    line.asked().end(now + nanos(respite));
}

/// Sends the question over a connection that is open already, where there is one: no server gets one for this alone.
async fn question(line: &Arc<Line>, authority: Authority) -> Option<Result<response::Parts, SendError>> {
    let head = Head {
        method: Method::GET,
        authority,
        path: PathAndQuery::from_static(LOAD_PATH),
        headers: HeaderMap::new(),
        grpc: false,
    };
    let reply = line.ask(Request { head, body: Outgoing::empty(), left: PATIENCE }).await?;
    Some(match reply {
        Ok(Reply::H1(reply)) => {
            let (head, body) = reply.response.into_parts();
            body.finish(line).await;
            Ok(head)
        }
        Ok(Reply::H2(reply)) => Ok(reply.response.into_parts().0),
        Err(error) => Err(error),
    })
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
        // Busy, or about to go.
        None if answer.status.is_server_error() => AFTER_SILENCE,
        Some(_) | None => AFTER_NONSENSE,
    }
}
