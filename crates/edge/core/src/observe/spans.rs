//! Exports requests as spans, by the OpenTelemetry semantic conventions: one span for each request, with a
//! child span for each attempt.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{ServiceName, observe::AttemptRecord};
use fairmesh_headers::{SpanContext, TRACEPARENT, TRACESTATE, remove_all_spellings};
use fairmesh_model::arith::mix64;
use fairmesh_otlp::{
    AttributeValue, Collector, Connecting, Counts, Exporter, RootSampler, Sampler, SecuredConnect,
    SecuredStream, Span, SpanKind,
};
use fairmesh_wire::transport::Transport;
use http::{HeaderMap, HeaderName, Method, Version};
use tokio::time::Instant;

use crate::observe::request_info::{CompletedRequest, RequestInfo};

/// Maximum length of an exported `tracestate` (W3C Trace Context 3.3.1.5 requires at least 512 characters to be
/// forwarded).
const MAX_TRACESTATE: usize = 512;

/// Configuration of tracing.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// Receiver of the spans.
    pub to: Collector,
    /// Sampler that selects the requests to export.
    pub sampler: Sampler,
    /// Further attributes of this process. They replace the built-in ones.
    pub resource: Vec<(String, String)>,
    /// Service that this process represents (`service.name`): the program behind it, or the service whose calls it
    /// sends. `None` for a proxy of many programs.
    pub service: Option<ServiceName>,
    /// Identity of this proxy among others (`service.instance.id`).
    pub instance: String,
}

/// Headers of B3 trace contexts, which carry sampling decisions too.
const B3: [HeaderName; 6] = [
    HeaderName::from_static("b3"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-parentspanid"),
    HeaderName::from_static("x-b3-sampled"),
    HeaderName::from_static("x-b3-flags"),
];

/// Overrides the sampling decision of a client outside the mesh, even if this proxy exports no spans: later
/// processes would follow the client's decision.
pub(crate) fn take_decision(headers: &mut HeaderMap, is_traced: bool) {
    remove_all_spellings(headers, &B3);
    // With a tracer, the tracer decides.
    if !is_traced
        && headers.contains_key(TRACEPARENT)
        && let Some(parent) = SpanContext::read(headers)
        && parent.sampled
    {
        headers.insert(TRACEPARENT, SpanContext { sampled: false, ..parent }.header());
    }
}

/// Creates spans of requests.
#[derive(Debug)]
pub(crate) struct Tracer {
    exporter: Exporter,
    sampler: Sampler,
    seen: AtomicU64,
    /// Counter with a random start, from which ids are made. Its mixed values do not repeat.
    ids: AtomicU64,
    salt: u64,
}

/// The span of a request in flight.
#[derive(Debug)]
pub(crate) struct ActiveSpan {
    pub(crate) own: SpanContext,
    /// Span id of the parent; 0 for the root of a trace.
    pub(crate) parent: u64,
    pub(crate) state: String,
}

impl Tracer {
    pub(crate) fn start(traces: &TraceConfig, transport: Transport) -> Self {
        // Hash keys are the standard library's source of randomness.
        let random = || RandomState::new().hash_one(0);
        Self {
            exporter: Exporter::start(&traces.to, resource(traces), Some(secured_connect(transport))),
            sampler: traces.sampler,
            seen: AtomicU64::new(0),
            ids: AtomicU64::new(random()),
            salt: random(),
        }
    }

    /// Begins the span of a sampled request, and makes it the parent in the request's headers. A request that
    /// starts a trace that is not sampled carries that decision, so that no later process samples part of the
    /// trace. A client outside the mesh may choose the trace id but not the decision: its requests could fill
    /// the span queues of all processes on their way, or hide from them.
    pub(crate) fn begin(&self, headers: &mut HeaderMap, is_outside: bool) -> Option<ActiveSpan> {
        let parent = match headers.contains_key(TRACEPARENT) {
            true => SpanContext::read(headers),
            false => None,
        };
        let (trace, sampled) = match parent {
            Some(parent) if is_outside => {
                // The client chose the trace id, so a share cannot decide by it; a new random id is used
                // instead.
                let sampled = self.takes(u128::from(self.id()));
                if !sampled {
                    headers.insert(TRACEPARENT, SpanContext { sampled, ..parent }.header());
                    return None;
                }
                (parent.trace, true)
            }
            // A request that is not exported keeps the trace context of its caller.
            Some(parent) => self.is_sampled(parent).then_some((parent.trace, true))?,
            None => self.root(headers)?,
        };
        let state = headers.get(TRACESTATE).filter(|_| parent.is_some());
        let state = state.and_then(|state| state.to_str().ok()).filter(|state| state.len() <= MAX_TRACESTATE);
        let state = state.unwrap_or_default().to_owned();
        let span = self.id();
        let own = SpanContext { trace, span, sampled };
        if parent.is_none() {
            // The trace state belongs to a context that could not be parsed.
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, own.header());
        sampled.then(|| ActiveSpan { own, parent: parent.map_or(0, |parent| parent.span), state })
    }

    /// Whether a request that continues its caller's trace is exported.
    fn is_sampled(&self, parent: SpanContext) -> bool {
        if self.sampler.follows_parent { parent.sampled } else { self.takes(parent.trace) }
    }

    /// Returns the trace id for a request without a valid context, and whether the trace is sampled. `None` for
    /// requests with a B3 context, since two traces could not be correlated, and for a proxy that leaves all
    /// decisions to other processes.
    fn root(&self, headers: &HeaderMap) -> Option<(u128, bool)> {
        if self.sampler.roots == RootSampler::OneIn(0) {
            return None;
        }
        let trace = u128::from(self.id()) << 64 | u128::from(self.id());
        let is_of_b3 =
            || ["b3", "x-b3-traceid", "x-b3-sampled"].iter().any(|name| headers.contains_key(*name));
        (!is_of_b3()).then(|| (trace, self.takes(trace)))
    }

    fn takes(&self, trace: u128) -> bool {
        self.sampler.roots.takes(trace, || self.seen.fetch_add(1, Relaxed))
    }

    fn id(&self) -> u64 {
        // Zero is invalid.
        mix64(self.ids.fetch_add(1, Relaxed) ^ self.salt).max(1)
    }

    /// Exports a completed request.
    pub(crate) fn export(&self, span: &ActiveSpan, request: &RequestInfo, completed: &CompletedRequest<'_>) {
        let attempts = completed.outcome.attempt_log.iter().enumerate();
        // The clocks differ: an attempt may seem to end microseconds after its request.
        let by = request.time + completed.took;
        let attempts = attempts.map(|(nth, tried)| attempt_span(span, request, nth, tried, by));
        self.exporter.export(std::iter::once(request_span(span, request, completed)).chain(attempts));
    }

    pub(crate) fn counts(&self) -> Counts {
        self.exporter.counts()
    }

    pub(crate) async fn stop(&self, deadline: Instant) {
        self.exporter.stop(deadline).await;
    }
}

/// Connects to control planes with the identity of this process.
fn secured_connect(transport: Transport) -> SecuredConnect {
    Arc::new(move |host: String, port: u16| -> Connecting {
        let transport = transport.clone();
        Box::pin(async move {
            let stream = transport.connect_host(&host, port).await?;
            Ok(Box::new(stream) as Box<dyn SecuredStream>)
        })
    })
}

/// The attributes of this process. Attributes from the environment replace the built-in ones.
fn resource(traces: &TraceConfig) -> Vec<(String, AttributeValue)> {
    let service = traces.service.as_ref().map(ToString::to_string);
    // The version of this process is not the version of the service that it stands for.
    let version = service.is_none().then_some(env!("CARGO_PKG_VERSION"));
    let own = [
        Some(("service.name", service.as_deref().unwrap_or("fairmesh-proxy"))),
        version.map(|version| ("service.version", version)),
        Some(("service.instance.id", &*traces.instance)),
    ];
    let given = |key: &str| traces.resource.iter().any(|(name, _)| name == key);
    let own = own.into_iter().flatten().filter(|(key, _)| !given(key));
    let own = own.map(|(key, value)| (key.to_owned(), value.into()));
    own.chain(traces.resource.iter().map(|(key, value)| (key.clone(), value.as_str().into()))).collect()
}

fn request_span(span: &ActiveSpan, request: &RequestInfo, completed: &CompletedRequest<'_>) -> Span {
    let outcome = completed.outcome;
    let mut attributes = method_attributes(&request.method);
    attributes.push(("url.scheme", "http".into()));
    attributes.push(("url.path", request.path().into()));
    let (host, port) = request.authority().map_or((None, None), host_and_port);
    attributes.extend(host.map(|host| ("server.address", host.into())));
    attributes.extend(port.map(|port| ("server.port", port.into())));
    attributes.push(("client.address", request.caller.ip().to_string().into()));
    attributes.push(("client.port", i64::from(request.caller.port()).into()));
    attributes.push(("network.protocol.version", version(request.version).into()));
    attributes.push(("http.response.status_code", i64::from(outcome.status.as_u16()).into()));
    attributes
        .push(("http.response.body.size", i64::try_from(completed.bytes_out).unwrap_or(i64::MAX).into()));
    attributes.extend(grpc_attributes(request, completed.grpc_status));
    attributes.push(("fairmesh.service", completed.service.as_str().into()));
    if let Some(pair) = &outcome.route_backend {
        attributes.push(("fairmesh.route", pair.route.as_str().into()));
        attributes.push(("fairmesh.backend", pair.backend.as_str().into()));
    }
    let caller = request.served_caller.as_ref();
    attributes.extend(caller.map(|caller| ("fairmesh.caller", caller.id().into())));
    attributes.extend(outcome.fault.map(|fault| ("fairmesh.fault", fault.into())));
    attributes.extend(outcome.injected.map(|injected| ("fairmesh.injected_fault", injected.into())));
    attributes.push(("fairmesh.attempts", i64::try_from(outcome.attempts).unwrap_or(i64::MAX).into()));
    let error = completed.error();
    attributes.extend(error.as_ref().map(|(kind, _)| ("error.type", kind.as_str().into())));
    Span {
        trace: span.own.trace,
        id: span.own.span,
        parent: span.parent,
        state: span.state.clone(),
        name: format!("{} {}", method(&request.method), completed.service),
        kind: SpanKind::Server,
        start: nanos(request.time),
        end: nanos(request.time + completed.took),
        attributes,
        error: error.map(|(_, words)| words),
    }
}

/// The span of an attempt. `by` is the end of its request.
fn attempt_span(
    span: &ActiveSpan,
    request: &RequestInfo,
    nth: usize,
    tried: &AttemptRecord,
    by: Duration,
) -> Span {
    let (endpoint, begun) = (&tried.endpoint, (request.time + tried.after).min(by));
    let mut attributes = method_attributes(&request.method);
    attributes.push(("url.full", format!("http://{}{}", endpoint.address, request.path()).into()));
    attributes.push(("server.address", endpoint.address.ip().to_string().into()));
    attributes.push(("server.port", i64::from(endpoint.address.port()).into()));
    if nth > 0 {
        attributes.push(("http.request.resend_count", i64::try_from(nth).unwrap_or(i64::MAX).into()));
    }
    attributes.push(("fairmesh.service", tried.service.to_string().into()));
    attributes.push(("fairmesh.instance", endpoint.instance.as_str().into()));
    attributes.push(("fairmesh.region", endpoint.location.region.as_str().into()));
    attributes.push(("fairmesh.revision", i64::try_from(tried.revision).unwrap_or(i64::MAX).into()));
    let error = match &tried.outcome {
        Ok(status) => {
            attributes.push(("http.response.status_code", i64::from(status.as_u16()).into()));
            let failed = status.is_client_error() || status.is_server_error();
            failed.then(|| (status.as_u16().to_string(), String::new()))
        }
        Err(words) => Some((tried.fault.map_or("given_up", |fault| fault.label()).into(), words.clone())),
    };
    attributes.extend(error.as_ref().map(|(kind, _)| ("error.type", kind.as_str().into())));
    Span {
        trace: span.own.trace,
        id: tried.span,
        parent: span.own.span,
        state: span.state.clone(),
        name: format!("{} {}", method(&request.method), tried.service),
        kind: SpanKind::Client,
        start: nanos(begun),
        end: nanos((begun + tried.took).min(by)),
        attributes,
        error: error.map(|(_, words)| words),
    }
}

/// Method used in span names. Span names must have few values, although clients may send any method.
fn method(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH") => {
            known
        }
        _ => "HTTP",
    }
}

fn method_attributes(request: &Method) -> Vec<(&'static str, AttributeValue)> {
    match method(request) {
        "HTTP" => {
            let original = request.as_str().chars().take(32).collect::<String>();
            vec![("http.request.method", "_OTHER".into()), ("http.request.method_original", original.into())]
        }
        known => vec![("http.request.method", known.into())],
    }
}

fn grpc_attributes(request: &RequestInfo, code: Option<u16>) -> Vec<(&'static str, AttributeValue)> {
    if !request.is_grpc {
        return Vec::new();
    }
    let mut attributes = vec![("rpc.system", AttributeValue::from("grpc"))];
    if let Some((service, method)) = request.path().strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        attributes.extend([("rpc.service", service.into()), ("rpc.method", method.into())]);
    }
    attributes.extend(code.map(|code| ("rpc.grpc.status_code", i64::from(code).into())));
    attributes
}

fn host_and_port(authority: &str) -> (Option<&str>, Option<i64>) {
    match authority.rsplit_once(':') {
        // IPv6 addresses in brackets contain colons.
        Some((host, port)) if !port.ends_with(']') => (Some(host), port.parse().ok()),
        _ => (Some(authority), None),
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
