//! The part of the traces that a caller may see.

use std::cmp::Reverse;

use fairmesh_model::{ServiceName, Tenant};
use fairmesh_wire::v1;

use crate::{
    span::{SpanKind, TracedSpan},
    store::{Trace, TraceStore},
};

/// Maximum number of traces in a response.
const MAX_SHOWN: usize = 200;

/// Selects traces, and which of their spans are shown. Spans from services of other tenants are hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceView {
    /// All traces.
    All,
    /// Traces in which services of a tenant take part.
    Tenant(Tenant),
    /// Traces in which a service takes part.
    Service(ServiceName),
}

impl TraceView {
    /// Lists the selected traces, slowest first; `only_failed` lists those with a failed span.
    pub fn list(&self, store: &TraceStore, only_failed: bool, now_ms: u64) -> v1::ReadTracesResponse {
        let listed = store.listed(|service| self.has(service));
        let summaries = listed.filter_map(|(id, trace)| self.summary(id, trace, now_ms));
        let mut traces: Vec<_> = summaries.filter(|trace| trace.failed || !only_failed).collect();
        traces.sort_by_key(|trace| Reverse(trace.duration_us));
        let not_shown = u32::try_from(traces.len().saturating_sub(MAX_SHOWN)).unwrap_or(u32::MAX);
        traces.truncate(MAX_SHOWN);
        v1::ReadTracesResponse { traces, not_shown, left_out: store.left_out(), ..Default::default() }
    }

    /// Returns a trace with its spans, ordered by start; `None` if no span is visible.
    pub fn read(&self, store: &TraceStore, id: u128, now_ms: u64) -> Option<v1::ReadTracesResponse> {
        let trace = store.trace(id)?;
        let summary = self.summary(id, trace, now_ms)?;
        let mut spans = self.seen(trace);
        spans.sort_by_key(|span| (span.start_ns, Reverse(span.end_ns), span.id));
        let start_ns = spans.first().map_or(0, |first| first.start_ns);
        Some(v1::ReadTracesResponse {
            hidden_spans: u32::try_from(trace.spans.len() - spans.len()).unwrap_or(u32::MAX),
            spans: spans.into_iter().map(|span| write(span, start_ns)).collect(),
            traces: vec![summary],
            left_out: store.left_out(),
            ..Default::default()
        })
    }

    fn seen<'a>(&self, trace: &'a Trace) -> Vec<&'a TracedSpan> {
        trace.spans.iter().filter(|span| self.shows(&span.service)).collect()
    }

    /// Whether the view lists traces of a service.
    fn has(&self, service: &str) -> bool {
        match self {
            Self::Service(name) => ServiceName::new(service).is_ok_and(|service| service == *name),
            _ => self.shows(service),
        }
    }

    /// Whether the view shows spans of a service. A name that is not a service name belongs to no tenant.
    fn shows(&self, service: &str) -> bool {
        let tenant = match self {
            Self::All => return true,
            Self::Tenant(tenant) => tenant,
            Self::Service(name) => &name.tenant,
        };
        ServiceName::new(service).is_ok_and(|service| service.tenant == *tenant)
    }

    /// Summarises a trace by its visible spans; `None` if there are none.
    fn summary(&self, id: u128, trace: &Trace, now_ms: u64) -> Option<v1::TraceSummary> {
        let seen = self.seen(trace);
        if let Self::Service(_) = self
            && !seen.iter().any(|span| self.has(&span.service))
        {
            return None;
        }
        let first = seen.iter().min_by_key(|span| (span.start_ns, Reverse(span.end_ns)))?;
        let end_ns = seen.iter().map(|span| span.end_ns).max()?;
        // The first span sees the whole call. If it succeeded, an attempt that failed was repeated.
        let failures = seen.iter().filter(|span| span.is_failed());
        let failed = failures.min_by_key(|span| (span.id != first.id, span.start_ns, span.id));
        Some(v1::TraceSummary {
            id: format!("{id:032x}"),
            service: first.service.clone(),
            name: first.name.clone(),
            duration_us: (end_ns - first.start_ns) / 1_000,
            failed: failed.is_some(),
            spans: u32::try_from(seen.len()).unwrap_or(u32::MAX),
            age_ms: now_ms.saturating_sub(trace.arrived_ms),
            status: first.status,
            error: failed.map(|span| span.error.clone()).unwrap_or_default(),
            failed_service: failed.map(|span| span.service.clone()).unwrap_or_default(),
        })
    }
}

fn write(span: &TracedSpan, start_ns: u64) -> v1::TraceSpan {
    let kind = match span.kind {
        SpanKind::Internal => v1::trace_span::Kind::Internal,
        SpanKind::Server => v1::trace_span::Kind::Server,
        SpanKind::Client => v1::trace_span::Kind::Client,
    };
    v1::TraceSpan {
        id: span.id,
        parent: span.parent,
        kind: kind.into(),
        service: span.service.clone(),
        process: span.process.clone(),
        name: span.name.clone(),
        start_us: (span.start_ns - start_ns) / 1_000,
        duration_us: span.took_ns() / 1_000,
        status: span.status,
        error: span.error.clone(),
        instance: span.instance.clone(),
        address: span.address.clone(),
        region: span.region.clone(),
        revision: span.revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceLimits;

    fn span(id: u64, service: &str, (start_us, end_us): (u64, u64)) -> TracedSpan {
        let service = service.into();
        let (start_ns, end_ns) = (1_000_000 + start_us * 1_000, 1_000_000 + end_us * 1_000);
        TracedSpan { trace: 1, id, service, start_ns, end_ns, ..TracedSpan::default() }
    }

    fn store() -> TraceStore {
        let mut store = TraceStore::new(TraceLimits::CONTROL_PLANE);
        let failed = TracedSpan { error: "reset".into(), ..span(3, "bank/rates", (40, 90)) };
        store.record(
            &"web".into(),
            vec![span(2, "shop/cart", (20, 80)), failed, span(1, "shop/web", (10, 100))],
            5,
        );
        store
    }

    #[test]
    fn trace_times_are_relative_to_first_span() {
        let read = TraceView::All.read(&store(), 1, 7).unwrap();
        let spans: Vec<_> =
            read.spans.iter().map(|span| (span.id, span.start_us, span.duration_us)).collect();
        assert_eq!(spans, [(1, 0, 90), (2, 10, 60), (3, 30, 50)]);
        let summary = &read.traces[0];
        assert_eq!((summary.duration_us, summary.failed, summary.age_ms), (90, true, 2));
        assert_eq!((&*summary.error, &*summary.failed_service), ("reset", "bank/rates"));
        assert_eq!(TraceView::All.list(&store(), false, 7).traces, read.traces);
        assert!(TraceView::All.read(&store(), 2, 7).is_none());
    }

    #[test]
    fn spans_of_other_tenants_are_hidden() {
        let of = |name: &str| ServiceName::new(name).unwrap();
        let shop = TraceView::Tenant(of("shop/web").tenant);
        let read = shop.read(&store(), 1, 5).unwrap();
        assert_eq!((read.spans.len(), read.hidden_spans, read.traces[0].failed), (2, 1, false));
        let rates = TraceView::Service(of("bank/rates"));
        assert_eq!(rates.list(&store(), false, 5).traces[0].service, "bank/rates");
        assert!(TraceView::Service(of("shop/other")).list(&store(), false, 5).traces.is_empty());
        assert!(TraceView::Service(of("shop/other")).read(&store(), 1, 5).is_none());
        assert!(TraceView::Tenant(of("ads/bid").tenant).read(&store(), 1, 5).is_none());
        let listed = |view: &TraceView| view.list(&store(), true, 5).traces.len();
        assert_eq!(
            (listed(&TraceView::All), listed(&shop)),
            (1, 0),
            "a failure of another tenant is hidden too"
        );
    }
}
