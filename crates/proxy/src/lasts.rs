//! Why the last requests went where they went: of each service one in a tenth of a second is looked at, the rest is not.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{Step, observe::AttemptRecord};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    access::{millis, seconds},
    insight::{Answered, Asked},
    service::Target,
};

/// How often a request of one service is looked at.
const EVERY_MS: u64 = 100;
/// How many of all services are kept, beside the last of each service that has series of its own.
const KEPT: usize = 128;
/// The longest reason that is kept: of many regions or candidates, the first ones.
const LONGEST: usize = 600;

/// The last request of a service that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// Milliseconds from the start of the proxy to when the next one is due.
    due: AtomicU64,
    record: Mutex<Option<Arc<Record>>>,
}

/// The last requests that were looked at, of all services.
#[derive(Debug)]
pub(crate) struct Lasts {
    start: Instant,
    kept: Mutex<VecDeque<Arc<Record>>>,
}

/// One request: what it was, why it went where it went, and what came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    /// Seconds since 1970, with milliseconds.
    pub(crate) time: f64,
    pub(crate) service: String,
    method: String,
    path: String,
    caller: String,
    status: u16,
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    reasons: Vec<Reason>,
    tries: Vec<Try>,
}

/// A step of a decision.
#[derive(Debug, Serialize)]
struct Reason {
    step: &'static str,
    detail: String,
}

/// Where a try went.
#[derive(Debug, Serialize)]
struct Try {
    service: String,
    instance: String,
    address: String,
    region: String,
    /// The revision of the routing information that it was decided by.
    revision: u64,
    ms: f64,
    outcome: String,
}

impl Lasts {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), kept: Mutex::default() }
    }

    /// Whether to look at a request of the service that begins now.
    #[inline]
    pub(crate) fn is_due(&self, last: &Last, now: Instant) -> bool {
        let ms = now.saturating_duration_since(self.start).as_millis() as u64;
        let due = last.due.load(Relaxed);
        // Of several at once, one.
        ms >= due && last.due.compare_exchange(due, ms + EVERY_MS, Relaxed, Relaxed).is_ok()
    }

    /// Whether [`is_due`](Self::is_due) may say so.
    #[inline]
    pub(crate) fn nears(&self, last: &Last, now: Instant) -> bool {
        now.saturating_duration_since(self.start).as_millis() as u64 >= last.due.load(Relaxed)
    }

    pub(crate) fn keep(&self, target: &Target, asked: &Asked, answered: &Answered) {
        let record = Arc::new(Record::of(target, asked, answered));
        if target.is_labelled {
            *target.last.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&record));
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front(record);
    }

    /// Those that are kept, newest first.
    pub(crate) fn all(&self) -> Vec<Arc<Record>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Last {
    pub(crate) fn record(&self) -> Option<Arc<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Record {
    fn of(target: &Target, asked: &Asked, answered: &Answered) -> Self {
        Self {
            time: seconds(asked.time),
            service: target.handle.name().to_string(),
            method: asked.method.to_string(),
            path: asked.path().to_owned(),
            caller: asked.caller.to_string(),
            status: answered.status.as_u16(),
            ms: millis(answered.took),
            fault: answered.words.clone(),
            reasons: answered.reasons.iter().map(Reason::of).collect(),
            tries: answered.tried.iter().map(Try::of).collect(),
        }
    }
}

impl Reason {
    fn of(step: &Step) -> Self {
        let mut detail: String = step.detail.chars().take(LONGEST).collect();
        if detail.len() < step.detail.len() {
            detail.push('…');
        }
        Self { step: step.title, detail }
    }
}

impl Try {
    fn of(tried: &AttemptRecord) -> Self {
        let endpoint = &tried.endpoint;
        Self {
            service: tried.service.to_string(),
            instance: endpoint.instance.to_string(),
            address: endpoint.address.to_string(),
            region: endpoint.location.region.to_string(),
            revision: tried.revision,
            ms: millis(tried.took),
            outcome: tried.outcome.as_ref().map_or_else(Clone::clone, |status| status.as_u16().to_string()),
        }
    }
}

impl fmt::Display for Record {
    /// A line of what it was, then one a reason and one a try.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, method, path, caller, status, ms, .. } = self;
        let time = Timestamp::from_millisecond((self.time * 1e3) as i64).unwrap_or_default();
        // Debug, since a path may hold anything.
        writeln!(f, "{service} at {time:.3}: {method} {path:?} from {caller}: {status} after {ms:.1} ms")?;
        for Reason { step, detail } in &self.reasons {
            writeln!(f, "  {step:<8} {detail}")?;
        }
        for (nth, tried) in (1..).zip(&self.tries) {
            let Try { service, instance, address, region, revision, ms, outcome } = tried;
            let took = Duration::from_micros((ms * 1e3) as u64);
            writeln!(
                f,
                "  try {nth:<4} {instance} of {service} at {address} in {region}: {outcome} after {took:.1?}, by revision {revision}"
            )?;
        }
        self.fault.iter().try_for_each(|fault| writeln!(f, "  {:<8} {fault:?}", "fault"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_request_in_a_while_is_looked_at() {
        let (lasts, last) = (Lasts::new(), Last::default());
        let due = || lasts.is_due(&last, Instant::now());
        assert_eq!([due(), due()], [true, false]);
        tokio::time::advance(Duration::from_millis(EVERY_MS - 1)).await;
        assert!(!due());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!([due(), due()], [true, false]);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let step = Step { title: "region", detail: "é".repeat(LONGEST + 1) };
        assert_eq!(Reason::of(&step).detail.chars().count(), LONGEST + 1);
    }
}
