use crate::v1;

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace; not zero.
    pub trace: u128,
    /// Itself; not zero.
    pub id: u64,
    /// The span that made it; 0 where it is the first of its trace.
    pub parent: u64,
    /// What other systems add to the context, as it came.
    pub state: String,
    /// A class of spans rather than this one: of few different texts.
    pub name: String,
    /// On which side of a request it is.
    pub kind: Kind,
    /// Nanoseconds since 1970.
    pub begun: u64,
    /// Nanoseconds since 1970, not before `begun`.
    pub ended: u64,
    /// What there is to say, by the semantic conventions of OpenTelemetry.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, where it did.
    pub error: Option<String>,
}

/// The side of a request that a span is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was asked.
    Server,
    /// It asks.
    Client,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Words.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<Span> for v1::Span {
    fn from(span: Span) -> Self {
        let kind = match span.kind {
            Kind::Server => v1::span::SpanKind::Server,
            Kind::Client => v1::span::SpanKind::Client,
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
            start_time_unix_nano: span.begun,
            end_time_unix_nano: span.ended,
            attributes: attributes(span.attributes),
            status: span.error.map(error),
            // Recorded, since nothing else is told.
            flags: 1,
        }
    }
}

pub(crate) fn attributes(attributes: Vec<(&'static str, Value)>) -> Vec<v1::KeyValue> {
    let pair = |(key, value): (&str, Value)| {
        let value = match value {
            Value::Text(text) => v1::any_value::Value::StringValue(text),
            Value::Number(number) => v1::any_value::Value::IntValue(number),
        };
        v1::KeyValue { key: key.to_owned(), value: Some(v1::AnyValue { value: Some(value) }) }
    };
    attributes.into_iter().map(pair).collect()
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
