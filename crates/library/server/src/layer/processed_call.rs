//! Calls that the server processes: their classes, their role as parents, and their counts.

use std::{sync::Arc, time::Instant};

use fairmesh_headers::{HeaderMapView, SpanContext, is_grpc};
use fairmesh_model::{Label, Policy, ServiceName};
use fairmesh_router::{ClassTable, RequestView};
use fairmesh_signals::{OriginId, ServedCall, ServedCounters, TraceParents};
use hazarc::AtomicOptionArc;
use http::{
    Request, header,
    uri::{Authority, PathAndQuery},
};

/// Traffic classes of a server's calls, determined by the routes of its policy. Without a service, calls are not
/// counted.
#[derive(Debug, Default)]
pub(crate) struct ServedClasses {
    service: Option<ServiceName>,
    current: AtomicOptionArc<Classes>,
}

#[derive(Debug)]
struct Classes {
    table: Option<ClassTable>,
    counters: Arc<ServedCounters>,
}

/// A call from its request to the beginning of its response, or to its failure.
#[derive(Debug)]
pub(crate) struct ProcessedCall {
    counters: Arc<ServedCounters>,
    /// Position of the call's class.
    position: usize,
    began: Instant,
}

impl ServedClasses {
    /// Creates the classes for a server of this service. Its calls have no class until its policy arrives.
    pub(crate) fn of_server(service: ServiceName) -> Self {
        let counters = Arc::new(ServedCounters::new(&service, &[]));
        let classes = Arc::new(Classes { table: None, counters });
        Self { service: Some(service), current: AtomicOptionArc::new(Some(classes)) }
    }

    /// Applies a policy. If the classes are unchanged, the counters continue.
    pub(crate) fn apply(&self, policy: &Policy) {
        let Some(service) = &self.service else { return };
        let classes = policy.traffic_classes();
        let before = self.current.load();
        let unchanged = before.as_ref().map(|before| &before.counters).filter(|before| before.has(&classes));
        let counters = unchanged.map_or_else(|| Arc::new(ServedCounters::new(service, &classes)), Arc::clone);
        let table = ClassTable::compile(policy);
        self.current.store(Some(Arc::new(Classes { table, counters })));
    }

    /// The counters of the current classes.
    pub(crate) fn counters(&self) -> Option<Arc<ServedCounters>> {
        self.current.load().as_ref().map(|classes| Arc::clone(&classes.counters))
    }

    /// Begins a call in a chain with this origin. Returns a value that counts the call, and a value that marks it as
    /// the parent of calls made on its behalf.
    pub(crate) fn begin<B>(
        &self,
        request: &Request<B>,
        origin: Option<OriginId>,
    ) -> (Option<ProcessedCall>, ServedCall) {
        let current = self.current.load();
        let Some(classes) = current.as_ref() else { return (None, ServedCall::NONE) };
        let (table, counters) = (&classes.table, &classes.counters);
        let position = table.as_ref().map_or(0, |table| counters.position(class_of(table, request)));
        let (node, began) = (counters.node(position), tokio::time::Instant::now().into_std());
        if let (Some(traces), Some(node)) = (TraceParents::of_this_process(), node)
            && let Some(span) = SpanContext::read(request.headers())
        {
            traces.remember(span.trace, (node, origin), began);
        }
        let processed = ProcessedCall { counters: Arc::clone(counters), position, began };
        (Some(processed), ServedCall::new(node, origin))
    }
}

impl ProcessedCall {
    /// Counts the call. `cpu` is the share of the CPU limit in use when the response begins, in thousandths. A proxy
    /// does not see how long its program waits for its own calls, so it passes no CPU share; no latency model is
    /// fitted to these calls.
    pub(crate) fn end(self, served: &ServedCall, cpu: Option<u16>) {
        let cpu = cpu.filter(|_| TraceParents::of_this_process().is_none());
        let now = tokio::time::Instant::now().into_std();
        let took = now.saturating_duration_since(self.began);
        self.counters.record(self.position, cpu, served.exclusive(took, now));
    }
}

fn class_of<'a, B>(table: &'a ClassTable, request: &Request<B>) -> Option<&'a Label> {
    let (uri, headers) = (request.uri(), request.headers());
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    table.find(&RequestView {
        host: host.or_else(|| uri.authority().map(Authority::as_str)).unwrap_or_default(),
        path: uri.path_and_query().map_or("/", PathAndQuery::as_str),
        method: request.method().as_str(),
        headers: &HeaderMapView(headers),
        grpc: is_grpc(headers),
    })
}
