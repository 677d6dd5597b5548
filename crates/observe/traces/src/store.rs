use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    sender_rooms::{SenderRoom, SenderRooms},
    span::TracedSpan,
};

/// Maximum age of a trace, in milliseconds.
const KEPT_MS: u64 = 60 * 60 * 1_000;
/// Time for which further spans of a trace may arrive, in milliseconds. Processes export every few seconds.
const SETTLED_MS: u64 = 30_000;
/// Interval at which the store looks for traces to drop, in milliseconds.
const SWEEP_MS: u64 = 1_000;
/// Size of a trace without its spans, in bytes: the trace itself and its places in the maps.
const TRACE_BYTES: usize = 512;

/// Limits of a [`TraceStore`].
#[derive(Clone, Copy, Debug)]
pub struct TraceLimits {
    /// Maximum size of all traces, in bytes.
    pub bytes: usize,
    /// Maximum number per service of slowest traces, and of last failed traces, that are kept.
    pub of_service: usize,
    /// Maximum number of services that have their own lists. A further service takes the place of one that the sender of
    /// the most services has named. Without such a sender, a trace of the further service is kept only while another
    /// service lists it.
    pub services: usize,
    /// Maximum number of spans per trace.
    pub spans: usize,
}

impl TraceLimits {
    /// Limits of a control plane.
    pub const CONTROL_PLANE: Self = Self { bytes: 64 << 20, of_service: 32, services: 2_048, spans: 512 };
}

/// Traces of the last hour. Beyond the limits, traces that are in no service's list of slowest or failed traces are
/// dropped first, then traces of the sender with the most bytes, first those of its service with the most bytes. A
/// sender that invents services or spans therefore displaces its own.
#[derive(Debug)]
pub struct TraceStore {
    limits: TraceLimits,
    traces: HashMap<u128, Trace>,
    services: BTreeMap<String, ServiceTraces>,
    senders: SenderRooms,
    /// Arrival time and id of all traces, ordered by the arrival of their first span.
    order: VecDeque<(u64, u128)>,
    bytes: usize,
    left_out: u64,
    swept_ms: u64,
}

/// A trace, with the spans that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) spans: Vec<TracedSpan>,
    pub(crate) arrived_ms: u64,
    bytes: usize,
    /// The bytes of each sender of spans; the first sender's include the trace itself.
    by_sender: Vec<(Arc<str>, usize)>,
    /// Number of lists that have the trace.
    listed: usize,
}

/// The traces of a service.
#[derive(Debug, Default)]
struct ServiceTraces {
    /// The sender that first named the service.
    sender: Arc<str>,
    /// Traces with the slowest spans of the service, ranked by duration.
    slowest: Longest,
    /// Traces with failed spans of the service, ranked by the arrival of the last failed span.
    failed: Longest,
}

/// A trace's time of arrival, its id, and bytes of its spans.
type SizedTrace = (u64, u128, usize);
/// The bytes of a service's traces, and these traces: the oldest last, and of equal services the older first.
type SizedService = (usize, Reverse<Vec<SizedTrace>>);

/// A bounded list of the traces with the greatest ranks.
#[derive(Debug, Default)]
struct Longest {
    by_rank: BTreeSet<(u64, u128)>,
    ranks: HashMap<u128, u64>,
}

/// Result of adding a trace to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// The trace was added, in place of another one if the list was full.
    InPlaceOf(Option<u128>),
    Already,
    TooSmall,
}

impl TraceStore {
    /// Creates an empty store.
    pub fn new(limits: TraceLimits) -> Self {
        Self {
            limits,
            traces: HashMap::new(),
            services: BTreeMap::new(),
            senders: SenderRooms::default(),
            order: VecDeque::new(),
            bytes: 0,
            left_out: 0,
            swept_ms: 0,
        }
    }

    /// Returns the number of traces.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Returns the approximate size of all traces, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of spans for which there was no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Adds spans that have just arrived from a sender. Repeated spans are ignored.
    pub fn record(&mut self, sender: &Arc<str>, spans: Vec<TracedSpan>, now_ms: u64) {
        for span in spans {
            self.record_span(sender, span, now_ms);
        }
        if now_ms >= self.swept_ms + SWEEP_MS {
            self.swept_ms = now_ms;
            self.forget_unlisted(now_ms.saturating_sub(SETTLED_MS));
            self.forget_before(now_ms.saturating_sub(KEPT_MS));
        }
        self.make_room();
    }

    fn record_span(&mut self, sender: &Arc<str>, span: TracedSpan, now_ms: u64) {
        let (id, size) = (span.trace, span.size());
        let is_first = !self.traces.contains_key(&id);
        let trace = self.traces.entry(id).or_insert_with(|| {
            self.order.push_back((now_ms, id));
            Trace { arrived_ms: now_ms, ..Trace::default() }
        });
        if trace.spans.iter().any(|known| known.id == span.id && known.kind == span.kind) {
            return;
        }
        if trace.spans.len() >= self.limits.spans {
            self.left_out += 1;
            return;
        }
        self.list(sender, &span, now_ms);
        let bytes = size + if is_first { TRACE_BYTES } else { 0 };
        if let Some(trace) = self.traces.get_mut(&id) {
            trace.spans.push(span);
            trace.add_bytes(sender, bytes);
            self.bytes += bytes;
            self.senders.take(sender, SenderRoom { bytes, services: 0 });
        }
    }

    /// Adds the trace of a span to the lists of the span's service.
    fn list(&mut self, sender: &Arc<str>, span: &TracedSpan, now_ms: u64) {
        let of_service = self.limits.of_service;
        if span.service.is_empty() || !self.make_place(sender, &span.service) {
            return;
        }
        let lists = self.services.entry(span.service.clone()).or_insert_with(|| {
            self.senders.take(sender, SenderRoom { bytes: 0, services: 1 });
            ServiceTraces { sender: Arc::clone(sender), ..ServiceTraces::default() }
        });
        let slowest = lists.slowest.add(span.trace, span.took_ns(), of_service);
        let failed = span.is_failed().then(|| lists.failed.add(span.trace, now_ms, of_service));
        for listed in [Some(slowest), failed].into_iter().flatten() {
            let Listed::InPlaceOf(other) = listed else { continue };
            if let Some(trace) = self.traces.get_mut(&span.trace) {
                trace.listed += 1;
            }
            if let Some(other) = other.and_then(|other| self.traces.get_mut(&other)) {
                other.listed -= 1;
            }
        }
    }

    /// Whether there is a place for the lists of a service. If all places are taken, the sender with the most services
    /// loses the one with the fewest traces, unless `sender` would have as many.
    fn make_place(&mut self, sender: &Arc<str>, service: &str) -> bool {
        if self.services.len() < self.limits.services || self.services.contains_key(service) {
            return true;
        }
        let own = self.senders.of(sender).services;
        let most = self.senders.all().max_by_key(|(_, room)| room.services);
        let Some((loser, _)) = most.filter(|(_, room)| room.services > own + 1) else { return false };
        let of_loser = self.services.iter().filter(|(_, lists)| lists.sender == *loser);
        let smallest = of_loser.min_by_key(|(_, lists)| lists.len()).map(|(service, _)| service.clone());
        if let Some(lists) = smallest.and_then(|service| self.remove_lists(&service)) {
            for id in lists.slowest.ranks.keys().chain(lists.failed.ranks.keys()) {
                if let Some(trace) = self.traces.get_mut(id) {
                    trace.listed -= 1;
                }
            }
        }
        self.services.len() < self.limits.services
    }

    fn remove_lists(&mut self, service: &str) -> Option<ServiceTraces> {
        let lists = self.services.remove(service)?;
        self.senders.free(&lists.sender, SenderRoom { bytes: 0, services: 1 });
        Some(lists)
    }

    /// Drops traces that are in no list and whose first span arrived before `before_ms`.
    fn forget_unlisted(&mut self, before_ms: u64) {
        let unlisted = |(at_ms, id): &&(u64, u128)| {
            *at_ms < before_ms && self.traces.get(id).is_some_and(|trace| trace.listed == 0)
        };
        let unlisted: Vec<_> = self.order.iter().filter(unlisted).map(|(_, id)| *id).collect();
        self.forget(&unlisted);
    }

    /// Drops traces whose first span arrived before `before_ms`.
    fn forget_before(&mut self, before_ms: u64) {
        let old: Vec<_> =
            self.order.iter().take_while(|(at_ms, _)| *at_ms < before_ms).map(|(_, id)| *id).collect();
        self.forget(&old);
    }

    fn make_room(&mut self) {
        if self.bytes <= self.limits.bytes {
            return;
        }
        self.forget_unlisted(u64::MAX);
        // Frees a sixteenth of the limit at once, so that this is rarely needed.
        let victims = self.largest(self.bytes.saturating_sub(self.limits.bytes - self.limits.bytes / 16));
        self.forget(&victims);
    }

    /// Selects traces with at least `excess` bytes in total. Repeatedly takes a trace of the sender that has the most
    /// bytes: the oldest of its service with the most bytes.
    fn largest(&self, mut excess: usize) -> Vec<u128> {
        let mut used: HashMap<_, _> = self.senders.all().map(|(sender, room)| (sender, room.bytes)).collect();
        let mut services = self.traces_by_sender();
        let mut victims = BTreeSet::new();
        while excess > 0
            && let Some(sender) = services.keys().copied().max_by_key(|sender| used.get(sender).copied())
        {
            let Some((left, Reverse(mut traces))) = services.get_mut(sender).and_then(BinaryHeap::pop) else {
                services.remove(sender);
                continue;
            };
            let Some((_, id, bytes)) = traces.pop() else { continue };
            if let Some(trace) = self.traces.get(&id).filter(|_| victims.insert(id)) {
                excess = excess.saturating_sub(trace.bytes);
                for (sender, bytes) in &trace.by_sender {
                    used.entry(sender).and_modify(|used| *used -= bytes);
                }
            }
            services.entry(sender).or_default().push((left - bytes, Reverse(traces)));
        }
        victims.into_iter().collect()
    }

    /// Groups the listed traces by the senders of their spans, then by service. Each group has its size in bytes, and
    /// its oldest trace comes last.
    fn traces_by_sender(&self) -> HashMap<&Arc<str>, BinaryHeap<SizedService>> {
        let mut grouped = HashMap::<&Arc<str>, HashMap<&str, Vec<SizedTrace>>>::new();
        for (service, lists) in &self.services {
            for id in lists.ids() {
                let Some(trace) = self.traces.get(&id) else { continue };
                for (sender, bytes) in &trace.by_sender {
                    let services = grouped.entry(sender).or_default();
                    services.entry(service).or_default().push((trace.arrived_ms, id, *bytes));
                }
            }
        }
        let sized = |mut traces: Vec<SizedTrace>| {
            traces.sort_unstable_by_key(|one| Reverse(*one));
            (traces.iter().map(|(_, _, bytes)| bytes).sum::<usize>(), Reverse(traces))
        };
        grouped.into_iter().map(|(sender, of)| (sender, of.into_values().map(sized).collect())).collect()
    }

    fn forget(&mut self, ids: &[u128]) {
        if ids.is_empty() {
            return;
        }
        let mut forgotten = BTreeSet::new();
        for id in ids {
            let Some(trace) = self.traces.remove(id) else { continue };
            self.bytes -= trace.bytes;
            for (sender, bytes) in &trace.by_sender {
                self.senders.free(sender, SenderRoom { bytes: *bytes, services: 0 });
            }
            forgotten.insert(*id);
            for service in trace.spans.iter().map(|span| &span.service) {
                if let Some(lists) = self.services.get_mut(service) {
                    lists.slowest.remove(*id);
                    lists.failed.remove(*id);
                    if lists.len() == 0 {
                        self.remove_lists(service);
                    }
                }
            }
        }
        self.order.retain(|(_, id)| !forgotten.contains(id));
    }

    /// Returns the trace with this id.
    pub(crate) fn trace(&self, id: u128) -> Option<&Trace> {
        self.traces.get(&id)
    }

    /// Returns the traces in the lists of the selected services, each of them once.
    pub(crate) fn listed(&self, is_selected: impl Fn(&str) -> bool) -> impl Iterator<Item = (u128, &Trace)> {
        let selected = self.services.iter().filter(|(service, _)| is_selected(service));
        let ids: BTreeSet<_> = selected.flat_map(|(_, lists)| lists.ids()).collect();
        ids.into_iter().filter_map(|id| Some((id, self.traces.get(&id)?)))
    }
}

impl Trace {
    fn add_bytes(&mut self, sender: &Arc<str>, bytes: usize) {
        self.bytes += bytes;
        match self.by_sender.iter_mut().find(|(known, _)| known == sender) {
            Some((_, used)) => *used += bytes,
            None => self.by_sender.push((Arc::clone(sender), bytes)),
        }
    }
}

impl ServiceTraces {
    /// The number of places that traces have in the lists.
    fn len(&self) -> usize {
        self.slowest.by_rank.len() + self.failed.by_rank.len()
    }

    fn ids(&self) -> BTreeSet<u128> {
        self.slowest.ranks.keys().chain(self.failed.ranks.keys()).copied().collect()
    }
}

impl Longest {
    /// Adds a trace with a rank. If the trace is added again, its greatest rank counts.
    fn add(&mut self, id: u128, rank: u64, most: usize) -> Listed {
        if let Some(known) = self.ranks.get_mut(&id) {
            if rank > *known {
                self.by_rank.remove(&(*known, id));
                self.by_rank.insert((rank, id));
                *known = rank;
            }
            return Listed::Already;
        }
        let smallest = self.by_rank.first().copied();
        let is_full = self.by_rank.len() >= most;
        if is_full && smallest.is_none_or(|(smallest, _)| rank <= smallest) {
            return Listed::TooSmall;
        }
        let other = smallest.filter(|_| is_full).map(|(_, other)| other);
        if let Some(other) = other {
            self.remove(other);
        }
        self.by_rank.insert((rank, id));
        self.ranks.insert(id, rank);
        Listed::InPlaceOf(other)
    }

    fn remove(&mut self, id: u128) {
        if let Some(rank) = self.ranks.remove(&id) {
            self.by_rank.remove(&(rank, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: TraceLimits = TraceLimits { bytes: 1 << 20, of_service: 3, services: 4, spans: 5 };

    fn span(trace: u128, id: u64, service: &str, took_ns: u64) -> TracedSpan {
        TracedSpan { trace, id, service: service.into(), end_ns: took_ns, ..TracedSpan::default() }
    }

    fn web() -> Arc<str> {
        "web".into()
    }

    fn failed(span: TracedSpan) -> TracedSpan {
        TracedSpan { error: "unreachable".into(), ..span }
    }

    fn ids(store: &TraceStore, service: &str) -> Vec<u128> {
        store.listed(|name| name == service).map(|(id, _)| id).collect()
    }

    #[test]
    fn slowest_and_last_failed_traces_of_service_are_kept() {
        let mut store = TraceStore::new(LIMITS);
        for trace in 1..=20 {
            let one = span(trace, 1, "shop/cart", (trace % 7) as u64 * 1_000);
            store.record(&web(), vec![if trace % 2 == 0 { failed(one) } else { one }], trace as u64);
        }
        assert_eq!(store.len(), 20, "further spans may follow");
        store.record(&web(), vec![span(21, 1, "shop/pay", 1)], SETTLED_MS + 100);
        assert_eq!(
            ids(&store, "shop/cart"),
            [6, 13, 16, 18, 20],
            "the slowest three, and the last three that failed"
        );
        assert_eq!(store.len(), 5 + 1);
        store.record(&web(), Vec::new(), KEPT_MS + 50);
        assert_eq!(ids(&store, "shop/cart"), [] as [u128; 0], "an hour later");
        assert_eq!(ids(&store, "shop/pay"), [21]);
    }

    #[test]
    fn trace_stays_complete_while_any_service_lists_it() {
        let mut store = TraceStore::new(LIMITS);
        store.record(&web(), vec![span(1, 1, "shop/web", 10), span(1, 2, "shop/cart", 9_000)], 0);
        for trace in 2..10 {
            store.record(&web(), vec![span(trace, 1, "shop/web", 100)], 0);
        }
        store.record(&web(), vec![span(1, 3, "shop/pay", 1), span(1, 3, "shop/pay", 1)], 2 * SETTLED_MS);
        assert!(!ids(&store, "shop/web").contains(&1));
        assert_eq!(store.trace(1).map(|trace| trace.spans.len()), Some(3), "and each span once");
    }

    #[test]
    fn trace_store_bounds_spans_and_services() {
        let mut store = TraceStore::new(LIMITS);
        store.record(&web(), (1..=8).map(|id| span(1, id, "shop/web", id)).collect(), 0);
        assert_eq!((store.left_out(), store.trace(1).unwrap().spans.len()), (3, 5));
        store.record(&web(), (2..9).map(|n| span(n, 1, &format!("shop/s{n}"), 1)).collect(), 0);
        assert_eq!(store.services.len(), LIMITS.services);
        store.record(&web(), Vec::new(), SETTLED_MS + 1);
        assert_eq!(store.len(), LIMITS.services, "traces of further services are in no list");
    }

    #[test]
    fn service_with_most_bytes_loses_traces_first() {
        let mut store = TraceStore::new(TraceLimits { bytes: 60_000, of_service: 100, ..LIMITS });
        store.record(&web(), vec![span(1, 1, "shop/quiet", 1)], 0);
        for trace in 2..200 {
            store.record(&web(), vec![span(trace, 1, "shop/loud", trace as u64)], trace as u64);
        }
        assert!(store.bytes() <= 60_000);
        assert_eq!(ids(&store, "shop/quiet"), [1]);
        assert!(ids(&store, "shop/loud").contains(&199) && !ids(&store, "shop/loud").contains(&2));
    }

    #[test]
    fn sender_that_invents_services_displaces_its_own() {
        let (mut store, hostile) = (TraceStore::new(LIMITS), Arc::<str>::from("hostile"));
        store.record(&hostile, (1..=9).map(|n| span(n, 1, &format!("red/s{n}"), 1)).collect(), 0);
        assert_eq!(store.services.len(), LIMITS.services);
        for (trace, service) in [(11, "blue/web"), (12, "blue/cart"), (13, "blue/pay")] {
            store.record(&web(), vec![span(trace, 1, service, 1)], 1);
        }
        let named: Vec<_> = store.services.keys().map(String::as_str).collect();
        assert_eq!(named, ["blue/cart", "blue/web", "red/s3", "red/s4"], "as many of each sender");
        store.record(&hostile, vec![span(14, 1, "red/new", 1)], 2);
        assert_eq!((ids(&store, "blue/web"), ids(&store, "red/new")), (vec![11], vec![]));
        store.record(&web(), Vec::new(), SETTLED_MS + 3);
        assert_eq!(store.len(), LIMITS.services, "traces in no list are forgotten");
    }

    #[test]
    fn sender_with_most_bytes_loses_traces_first() {
        let mut store =
            TraceStore::new(TraceLimits { bytes: 60_000, services: 1_000, of_service: 100, spans: 5 });
        // More bytes of one service than the other sender has of any.
        for trace in 1..=20 {
            store.record(&web(), vec![span(trace, 1, "shop/web", trace as u64)], 0);
        }
        for trace in 101..=400 {
            store.record(&"hostile".into(), vec![span(trace, 1, &format!("red/s{trace}"), 1)], trace as u64);
        }
        assert!(store.bytes() <= 60_000);
        assert_eq!(ids(&store, "shop/web").len(), 20);
        assert_eq!(ids(&store, "red/s400"), [400], "the last ones of the other sender are kept");
    }

    proptest! {
        #[test]
        fn trace_store_sums_and_lists_match_its_traces(
            spans in prop::collection::vec(
                (1_u128..30, 1_u64..8, 0_usize..6, 0_u64..50, any::<(bool, bool)>(), 0_u64..20_000), 0..300,
            )
        ) {
            let mut store = TraceStore::new(TraceLimits { bytes: 12_000, ..LIMITS });
            let mut now_ms = 0;
            for (trace, id, service, took, (is_failed, is_other), later) in spans {
                now_ms += later;
                let sender = if is_other { "other".into() } else { web() };
                let one = span(trace, id, &format!("shop/s{service}"), took);
                store.record(&sender, vec![if is_failed { failed(one) } else { one }], now_ms);
                prop_assert!(store.bytes() <= 12_000);
                prop_assert_eq!(store.bytes(), store.traces.values().map(|trace| trace.bytes).sum::<usize>());
                for (sender, room) in store.senders.all() {
                    let of = store.traces.values().flat_map(|trace| &trace.by_sender);
                    let bytes: usize = of.filter(|(name, _)| name == sender).map(|(_, bytes)| bytes).sum();
                    let services = store.services.values().filter(|lists| lists.sender == *sender).count();
                    prop_assert_eq!(room, SenderRoom { bytes, services });
                }
                prop_assert_eq!(store.order.len(), store.traces.len());
                for (id, trace) in &store.traces {
                    let lists = store.services.values().flat_map(|lists| [&lists.slowest, &lists.failed]);
                    prop_assert_eq!(trace.listed, lists.filter(|list| list.ranks.contains_key(id)).count());
                }
            }
        }
    }
}
