//! Reads spans from OTLP requests.

use fairmesh_otlp::v1::{
    AnyValue, ExportTraceServiceRequest, KeyValue, Span, any_value::Value, span, status::StatusCode,
};

use crate::span::{SpanKind, TracedSpan};

/// Maximum length of a stored text, in characters.
const MAX_TEXT: usize = 256;

/// Returns the spans of a request, and the number of malformed spans. Texts are truncated, and control characters are
/// removed.
pub fn read_spans(request: ExportTraceServiceRequest) -> (Vec<TracedSpan>, u64) {
    let (mut spans, mut malformed) = (Vec::new(), 0);
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let process = text(&attributes, "service.name");
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            match read_span(span, &process) {
                Some(span) => spans.push(span),
                None => malformed += 1,
            }
        }
    }
    (spans, malformed)
}

/// Reads a span that `process` exported; `None` if an id is missing or the span ends before it starts.
fn read_span(span: Span, process: &str) -> Option<TracedSpan> {
    let trace = u128::from_be_bytes(span.trace_id.as_slice().try_into().ok()?);
    let id = u64::from_be_bytes(span.span_id.as_slice().try_into().ok()?);
    let parent = span.parent_span_id.as_slice().try_into().map_or(0, u64::from_be_bytes);
    let (start_ns, end_ns) = (span.start_time_unix_nano, span.end_time_unix_nano);
    if trace == 0 || id == 0 || end_ns < start_ns {
        return None;
    }
    let kind = match span.kind() {
        span::SpanKind::Server => SpanKind::Server,
        span::SpanKind::Client => SpanKind::Client,
        _ => SpanKind::Internal,
    };
    let attributes = &span.attributes;
    let service = text(attributes, "fairmesh.service");
    Some(TracedSpan {
        trace,
        id,
        parent,
        kind,
        service: if service.is_empty() { process.to_owned() } else { service },
        process: process.to_owned(),
        name: shown(&span.name),
        start_ns,
        end_ns,
        status: number(attributes, "http.response.status_code")
            .and_then(|code| u32::try_from(code).ok())
            .unwrap_or(0),
        error: error(&span),
        instance: text(attributes, "fairmesh.instance"),
        address: address(attributes),
        region: text(attributes, "fairmesh.region"),
        revision: number(attributes, "fairmesh.revision").and_then(|at| u64::try_from(at).ok()).unwrap_or(0),
    })
}

/// Returns why a span failed; empty if it did not fail.
fn error(span: &Span) -> String {
    let status = span.status.as_ref().filter(|status| status.code() == StatusCode::Error);
    let Some(status) = status else { return String::new() };
    let kind = text(&span.attributes, "error.type");
    match (shown(&status.message), kind.is_empty()) {
        (words, _) if !words.is_empty() => words,
        (_, false) => kind,
        _ => "error".to_owned(),
    }
}

fn address(attributes: &[KeyValue]) -> String {
    let host = text(attributes, "server.address");
    match number(attributes, "server.port") {
        Some(port) if host.contains(':') => format!("[{host}]:{port}"),
        Some(port) if !host.is_empty() => format!("{host}:{port}"),
        _ => host,
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref().and_then(|AnyValue { value }| value.as_ref())
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => shown(text),
        _ => String::new(),
    }
}

fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match value(attributes, key) {
        Some(Value::IntValue(number)) => Some(*number),
        _ => None,
    }
}

/// Makes a text from an untrusted process safe for a terminal or a page. Characters that a reader does not see, such as
/// spaces of no width, would let a name look like that of another service.
fn shown(text: &str) -> String {
    let visible = |one: &char| one.is_ascii_graphic() || one.is_alphanumeric() || *one == ' ';
    text.trim().chars().filter(visible).take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use fairmesh_otlp::v1::{Resource, ResourceSpans, ScopeSpans, Status};

    use super::*;

    fn attribute(key: &str, value: Value) -> KeyValue {
        KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }) }
    }

    fn span() -> Span {
        Span {
            trace_id: 7_u128.to_be_bytes().to_vec(),
            span_id: 3_u64.to_be_bytes().to_vec(),
            name: "GET shop/cart".into(),
            kind: span::SpanKind::Client.into(),
            start_time_unix_nano: 1_000,
            end_time_unix_nano: 5_000,
            attributes: vec![
                attribute("fairmesh.service", Value::StringValue("shop/cart".into())),
                attribute(
                    "fairmesh.instance",
                    Value::StringValue(" cart-\u{1b}\u{200b}\u{202e}[2J0 ".into()),
                ),
                attribute("fairmesh.revision", Value::IntValue(42)),
                attribute("server.address", Value::StringValue("::1".into())),
                attribute("server.port", Value::IntValue(80)),
                attribute("http.response.status_code", Value::IntValue(503)),
                attribute("error.type", Value::StringValue("503".into())),
            ],
            status: Some(Status { message: String::new(), code: StatusCode::Error.into() }),
            ..Span::default()
        }
    }

    fn read(spans: Vec<Span>) -> (Vec<TracedSpan>, u64) {
        let process = attribute("service.name", Value::StringValue("shop/web".into()));
        let resource = Some(Resource { attributes: vec![process] });
        let scope_spans = vec![ScopeSpans { scope: None, spans }];
        read_spans(ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource, scope_spans }],
        })
    }

    #[test]
    fn proxy_attempt_span_is_read_with_endpoint_and_revision() {
        let (spans, malformed) = read(vec![span()]);
        let expected = TracedSpan {
            trace: 7,
            id: 3,
            kind: SpanKind::Client,
            service: "shop/cart".into(),
            process: "shop/web".into(),
            name: "GET shop/cart".into(),
            start_ns: 1_000,
            end_ns: 5_000,
            status: 503,
            error: "503".into(),
            instance: "cart-[2J0".into(),
            address: "[::1]:80".into(),
            revision: 42,
            ..TracedSpan::default()
        };
        assert_eq!((spans, malformed), (vec![expected], 0));
    }

    #[test]
    fn only_malformed_spans_are_skipped_and_texts_are_truncated() {
        let long = Span { name: "é".repeat(10_000), attributes: Vec::new(), status: None, ..span() };
        let without_id = Span { span_id: Vec::new(), ..span() };
        let without_trace = Span { trace_id: vec![0; 16], ..span() };
        let backwards = Span { end_time_unix_nano: 999, ..span() };
        let (spans, malformed) = read(vec![without_id, long, without_trace, backwards]);
        assert_eq!((spans.len(), malformed), (1, 3));
        assert_eq!((spans[0].name.chars().count(), spans[0].service.as_str()), (MAX_TEXT, "shop/web"));
        assert!(!spans[0].is_failed());
    }
}
