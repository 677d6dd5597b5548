//! Requests as spans, by the semantic conventions of OpenTelemetry: one that was asked, and in it one for each try.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_client::observe::AttemptRecord;
use fairmesh_headers::{SpanContext, TRACEPARENT, TRACESTATE};
use fairmesh_model::arith::mix64;
use fairmesh_otlp::{AttributeValue, Collector, Counts, Exporter, Span, SpanKind};
use http::{HeaderMap, Method, Version};
use tokio::time::Instant;

use crate::insight::{Asked, Ended};

/// The longest state of other systems that is told (W3C Trace Context 3.3.1.5 has 512 characters passed on at least).
const LONGEST_STATE: usize = 512;

/// Which requests are told as spans, and whom.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Who takes the spans.
    pub to: Collector,
    /// Of requests without a trace of their own, one of so many begins one; 0 is taken for none. Those with one are told where
    /// their caller's span is recorded.
    pub one_in: u64,
    /// Who tells, among other proxies.
    pub instance: String,
}

/// Makes spans of requests.
#[derive(Debug)]
pub(crate) struct Tracer {
    exporter: Exporter,
    one_in: u64,
    seen: AtomicU64,
    /// Begins at random, and goes on by counting: numbers that are mixed never meet again.
    ids: AtomicU64,
    salt: u64,
}

/// The span of a request that is under way.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) own: SpanContext,
    /// 0 where it is the first of its trace.
    parent: u64,
    state: String,
}

impl Tracer {
    pub(crate) fn start(traces: &Traces) -> Self {
        let about = vec![
            ("service.name", AttributeValue::from("fairmesh-proxy")),
            ("service.version", env!("CARGO_PKG_VERSION").into()),
            ("service.instance.id", traces.instance.as_str().into()),
        ];
        // The keys of hash maps are the standard library's way to what is random.
        let random = || RandomState::new().hash_one(0);
        Self {
            exporter: Exporter::start(&traces.to, about),
            one_in: traces.one_in,
            seen: AtomicU64::new(0),
            ids: AtomicU64::new(random()),
            salt: random(),
        }
    }

    /// Begins the span of a request, which then names it as its parent, where it is one of those to be told.
    pub(crate) fn begin(&self, headers: &mut HeaderMap) -> Option<Begun> {
        let parent = match headers.contains_key(TRACEPARENT) {
            true => SpanContext::read(headers),
            false => None,
        };
        if parent.map_or_else(|| !self.is_chosen(headers), |parent| !parent.sampled) {
            return None;
        }
        let state = headers.get(TRACESTATE).filter(|_| parent.is_some());
        let state = state.and_then(|state| state.to_str().ok()).filter(|state| state.len() <= LONGEST_STATE);
        let state = state.unwrap_or_default().to_owned();
        let span = self.id();
        let trace = parent.map_or_else(|| u128::from(self.id()) << 64 | u128::from(self.id()), |p| p.trace);
        let own = SpanContext { trace, span, sampled: true };
        if parent.is_none() {
            // It belongs to a context that nobody could read.
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, own.header());
        Some(Begun { own, parent: parent.map_or(0, |parent| parent.span), state })
    }

    /// Whether a request without a context that can be read begins a trace. One that is in a trace of another kind does not:
    /// two at once would be told apart by nobody.
    fn is_chosen(&self, headers: &HeaderMap) -> bool {
        self.one_in > 0
            && self.seen.fetch_add(1, Relaxed).is_multiple_of(self.one_in)
            && !["b3", "x-b3-traceid", "x-b3-sampled"].iter().any(|name| headers.contains_key(*name))
    }

    fn id(&self) -> u64 {
        // Zero stands for none.
        mix64(self.ids.fetch_add(1, Relaxed) ^ self.salt).max(1)
    }

    /// Tells of a request that has ended.
    pub(crate) fn ended(&self, span: &Begun, asked: &Asked, ended: &Ended<'_>) {
        let tries = ended.answered.tried.iter().enumerate();
        // By another clock: a try that the request ended with may seem to end some microseconds after it.
        let by = asked.time + ended.took;
        let tries = tries.map(|(nth, tried)| of_try(span, asked, (nth, tried), by));
        self.exporter.export(std::iter::once(of_request(span, asked, ended)).chain(tries));
    }

    pub(crate) fn counts(&self) -> Counts {
        self.exporter.counts()
    }

    pub(crate) async fn stop(&self, deadline: Instant) {
        self.exporter.stop(deadline).await;
    }
}

fn of_request(span: &Begun, asked: &Asked, ended: &Ended<'_>) -> Span {
    let answered = ended.answered;
    let mut attributes = of_method(&asked.method);
    attributes.push(("url.scheme", "http".into()));
    attributes.push(("url.path", asked.path().into()));
    let (host, port) = asked.authority().map_or((None, None), host_and_port);
    attributes.extend(host.map(|host| ("server.address", host.into())));
    attributes.extend(port.map(|port| ("server.port", port.into())));
    attributes.push(("client.address", asked.caller.ip().to_string().into()));
    attributes.push(("client.port", i64::from(asked.caller.port()).into()));
    attributes.push(("network.protocol.version", version(asked.version).into()));
    attributes.push(("http.response.status_code", i64::from(answered.status.as_u16()).into()));
    attributes.push(("http.response.body.size", i64::try_from(ended.sent).unwrap_or(i64::MAX).into()));
    attributes.extend(of_grpc(asked, ended.code));
    attributes.push(("fairmesh.service", ended.service.as_str().into()));
    attributes.push(("fairmesh.tries", i64::try_from(answered.tries).unwrap_or(i64::MAX).into()));
    let problem = ended.problem();
    attributes.extend(problem.as_ref().map(|(kind, _)| ("error.type", kind.as_str().into())));
    Span {
        trace: span.own.trace,
        id: span.own.span,
        parent: span.parent,
        state: span.state.clone(),
        name: format!("{} {}", method(&asked.method), ended.service),
        kind: SpanKind::Server,
        start: nanos(asked.time),
        end: nanos(asked.time + ended.took),
        attributes,
        error: problem.map(|(_, words)| words),
    }
}

/// A try of a request that ended then.
fn of_try(span: &Begun, asked: &Asked, (nth, tried): (usize, &AttemptRecord), by: Duration) -> Span {
    let (endpoint, begun) = (&tried.endpoint, (asked.time + tried.after).min(by));
    let mut attributes = of_method(&asked.method);
    attributes.push(("url.full", format!("http://{}{}", endpoint.address, asked.path()).into()));
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
        name: format!("{} {}", method(&asked.method), tried.service),
        kind: SpanKind::Client,
        start: nanos(begun),
        end: nanos((begun + tried.took).min(by)),
        attributes,
        error: error.map(|(_, words)| words),
    }
}

/// The method of a span: programs may make others up, and names of spans must be few.
fn method(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH") => {
            known
        }
        _ => "HTTP",
    }
}

fn of_method(asked: &Method) -> Vec<(&'static str, AttributeValue)> {
    match method(asked) {
        "HTTP" => {
            let original = asked.as_str().chars().take(32).collect::<String>();
            vec![("http.request.method", "_OTHER".into()), ("http.request.method_original", original.into())]
        }
        known => vec![("http.request.method", known.into())],
    }
}

fn of_grpc(asked: &Asked, code: Option<u16>) -> Vec<(&'static str, AttributeValue)> {
    if !asked.is_grpc {
        return Vec::new();
    }
    let mut attributes = vec![("rpc.system", AttributeValue::from("grpc"))];
    if let Some((service, method)) = asked.path().strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        attributes.extend([("rpc.service", service.into()), ("rpc.method", method.into())]);
    }
    attributes.extend(code.map(|code| ("rpc.grpc.status_code", i64::from(code).into())));
    attributes
}

fn host_and_port(authority: &str) -> (Option<&str>, Option<i64>) {
    match authority.rsplit_once(':') {
        // In brackets, an address of version 6 holds colons itself.
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
