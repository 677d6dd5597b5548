//! Parsing any `traceparent` never panics, and the parsed value survives encoding and parsing.

use fairmesh_headers::{SpanContext, TRACEPARENT};
use http::{HeaderMap, HeaderValue};

/// What must hold of these bytes.
pub fn run(sent: &[u8]) {
    let read = |value| SpanContext::read(&HeaderMap::from_iter([(TRACEPARENT, value)]));
    let Ok(value) = HeaderValue::from_bytes(sent) else { return };
    if let Some(context) = read(value) {
        assert!(context.trace != 0 && context.span != 0);
        assert_eq!(read(context.header()), Some(context));
    }
}
