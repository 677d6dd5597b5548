//! What is seen of single requests beside what is counted of all: a line in the log, spans, why the last one went where it
//! went, and what its program asked to be told. Nearly every request needs none of it, and pays a look for each.

mod ending;
mod story;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_client::Trace;
use fairmesh_otlp::Counts;
use http::request::Parts;
use tokio::time::Instant;

pub(crate) use self::ending::Ended;
use self::story::Subject;
pub(crate) use self::story::{Answered, Asked, Story};
use crate::{
    Traces,
    access::{Access, AccessLog, Entry},
    decision,
    endpoints::EndpointMetrics,
    forward::Origin,
    lasts::Lasts,
    metrics::Metrics,
    service::Target,
    spans::Tracer,
};

/// Who looks at requests.
#[derive(Debug)]
pub(crate) struct Seeing {
    access: Access,
    tracer: Option<Tracer>,
    pub(crate) lasts: Option<Lasts>,
    pub(crate) endpoints: Option<Arc<EndpointMetrics>>,
    metrics: Arc<Metrics>,
}

/// What is seen, where.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    pub(crate) log: AccessLog,
    pub(crate) traces: Option<Traces>,
    pub(crate) endpoints: Option<Arc<EndpointMetrics>>,
    /// Whether there are pages that show the last requests.
    pub(crate) pages: bool,
}

impl Seeing {
    /// Starts what writes and what exports; must be called within a tokio runtime.
    pub(crate) fn start(looks: Looks, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            access: Access::start(looks.log),
            tracer: looks.traces.as_ref().map(Tracer::start),
            lasts: looks.pages.then(Lasts::new),
            endpoints: looks.endpoints,
            metrics,
        })
    }

    /// Looks at a request that has come; `None` where nobody wants to see more of it. A request that is traced goes on as the
    /// proxy's own span has it.
    #[inline]
    pub(crate) fn begin(
        self: &Arc<Self>,
        head: &mut Parts,
        target: &Arc<Target>,
        (origin, began): (&Origin, Instant),
        length: impl FnOnce() -> Option<u64>,
    ) -> Option<Box<Story>> {
        let tell = decision::asked(&mut head.headers);
        let keep = self.lasts.as_ref().is_some_and(|lasts| lasts.is_due(&target.last, began));
        let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(&mut head.headers));
        if !tell && !keep && span.is_none() && !self.access.is_on() {
            return None;
        }
        let parent = span.as_ref().map(|span| span.own);
        let trace = (tell || keep || parent.is_some()).then(|| Trace::within(parent, keep));
        let asked = Asked::new(head, (origin.caller, length()), (began, wall()));
        let subject = Subject { seeing: Arc::clone(self), target: Arc::clone(target), asked, span };
        Some(Box::new(Story { subject: Some(subject), trace, tell, keep }))
    }

    /// Whether every request is to be seen.
    pub(crate) fn sees_all(&self) -> bool {
        self.access.is_on() || self.tracer.is_some()
    }

    /// Whether a request that comes now is to be seen whatever it says, so that [`begin`](Self::begin) has to be asked.
    #[inline]
    pub(crate) fn wants(&self, target: &Target, now: Instant) -> bool {
        self.sees_all() || self.lasts.as_ref().is_some_and(|lasts| lasts.nears(&target.last, now))
    }

    /// Logs a connection that became a tunnel, or none.
    pub(crate) fn tunnel(&self, failed: bool, entry: impl FnOnce() -> Entry) {
        if self.access.wants(failed) {
            self.log(entry());
        }
    }

    fn log(&self, entry: Entry) {
        if !self.access.write(entry) {
            self.metrics.log_lines_dropped.fetch_add(1, Relaxed);
        }
    }

    /// What became of the spans so far, where any are made.
    pub(crate) fn spans(&self) -> Option<Counts> {
        self.tracer.as_ref().map(Tracer::counts)
    }

    /// Takes what is left of the spans to the collector, at most until then.
    pub(crate) async fn stop(&self, deadline: Instant) {
        if let Some(tracer) = &self.tracer {
            tracer.stop(deadline).await;
        }
    }
}

/// The time now, since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "what is told of a request says when, and nothing is decided by it"
)]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
