use crate::v1;

/// A completed span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Trace id; not zero.
    pub trace: u128,
    /// Span id; not zero.
    pub id: u64,
    /// Id of the parent span; 0 for the root of a trace.
    pub parent: u64,
    /// The `tracestate` of other systems, unchanged.
    pub state: String,
    /// Low-cardinality name of the span.
    pub name: String,
    /// Side of the request on which the span was recorded.
    pub kind: SpanKind,
    /// Start of the span, in nanoseconds since 1970.
    pub start: u64,
    /// End of the span, in nanoseconds since 1970; not before `start`.
    pub end: u64,
    /// Attributes, named as in OpenTelemetry's semantic conventions.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Error of the request, if it failed.
    pub error: Option<String>,
}

/// Side of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Serves the request.
    Server,
    /// Sends the request.
    Client,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A string.
    Text(String),
    /// An integer.
    Number(i64),
}

impl From<Span> for v1::Span {
    fn from(span: Span) -> Self {
        let kind = match span.kind {
            SpanKind::Server => v1::span::SpanKind::Server,
            SpanKind::Client => v1::span::SpanKind::Client,
        };
        let error = |message| v1::Status { message, code: v1::status::StatusCode::Error as i32 };
        Self {
            trace_id: span.trace.to_be_bytes().into(),
            span_id: span.id.to_be_bytes().into(),
            trace_state: span.state,
            parent_span_id: match span.parent {
                0 => Vec::new(),
                parent => parent.to_be_bytes().into(),
            },
            name: span.name,
            kind: kind as i32,
            start_time_unix_nano: span.start,
            end_time_unix_nano: span.end,
            attributes: attributes(span.attributes),
            status: span.error.map(error),
            // The `sampled` flag: unsampled spans are not exported.
            flags: 1,
        }
    }
}

pub(crate) fn attributes<K: Into<String>>(attributes: Vec<(K, AttributeValue)>) -> Vec<v1::KeyValue> {
    let pair = |(key, value): (K, AttributeValue)| {
        let value = match value {
            AttributeValue::Text(text) => v1::any_value::Value::StringValue(text),
            AttributeValue::Number(number) => v1::any_value::Value::IntValue(number),
        };
        v1::KeyValue { key: key.into(), value: Some(v1::AnyValue { value: Some(value) }) }
    };
    attributes.into_iter().map(pair).collect()
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
