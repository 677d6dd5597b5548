//! W3C Trace Context (Recommendation of 2021, version 00).

use http::{HeaderMap, HeaderName, HeaderValue};

/// The trace of a request, its parent span, and whether that span is recorded.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Vendor data of a trace; ignored without a valid [`TRACEPARENT`].
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Flag of a recorded trace.
const SAMPLED: u8 = 1;
/// Length of version 00: 2, 32, 16 and 2 digits, separated by dashes.
const LENGTH: usize = 55;

/// The span that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Trace ID, never zero.
    pub trace: u128,
    /// Span ID, never zero.
    pub span: u64,
    /// Whether the caller records the span.
    pub sampled: bool,
}

impl SpanContext {
    /// Reads the span of a request. `None` if there is none, or if it is invalid: repeated, with digits in upper case,
    /// or with an ID of zero.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        Self::read_values(headers.get_all(TRACEPARENT).iter().map(HeaderValue::as_bytes))
    }

    /// Like [`read`](Self::read), from the values of the header [`TRACEPARENT`].
    pub fn read_values<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value),
            _ => None,
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let fields = text.get(..LENGTH)?;
        let [version, trace, span, flags] = [0..2, 3..35, 36..52, 53..55].map(|range| &fields[range]);
        let dashes = [2, 35, 52].iter().all(|at| fields[*at] == b'-');
        // A later version may append fields after another dash.
        let length = match number(version)? {
            0 => text.len() == LENGTH,
            255 => false,
            _ => matches!(text.get(LENGTH), None | Some(b'-')),
        };
        let (trace, flags) = (number(trace)?, number(flags)?);
        let span = u64::try_from(number(span)?).ok()?;
        let sampled = flags as u8 & SAMPLED != 0;
        (dashes && length && trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }

    /// Encodes the header value.
    pub fn header(&self) -> HeaderValue {
        let flags = u8::from(self.sampled);
        let text = format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span);
        // Digits and dashes are always a valid header value.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Parses hexadecimal digits in lower case; at most 32.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WELL_FORMED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(values: &[&str]) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, value.parse().unwrap());
        }
        SpanContext::read(&headers)
    }

    #[test]
    fn span_context_round_trips() {
        let context = read(&[WELL_FORMED]).unwrap();
        assert_eq!((context.trace, context.sampled), (0x4bf92f3577b34da6a3ce929d0e0e4736, true));
        assert_eq!(context.header(), WELL_FORMED);
        let unsampled = read(&[&WELL_FORMED.replace("-01", "-02")]).unwrap();
        assert!(!unsampled.sampled, "the second flag has another meaning");
        let later = format!("cc{}-what-will-be", &WELL_FORMED[2..]);
        assert_eq!(read(&[&later]), Some(context), "a later version has more fields");
    }

    #[test]
    fn malformed_span_contexts_are_ignored() {
        let with = |from: &str, to: &str| WELL_FORMED.replace(from, to);
        for wrong in [
            String::new(),
            "garbage".into(),
            with("00-4bf", "ff-4bf"),
            with("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            with("00f067aa0ba902b7", &"0".repeat(16)),
            with("4bf9", "4BF9"),
            with("-01", "-0"),
            with("-01", "-01-more"),
            with("-01", "-0g"),
            with("-", "_"),
            with("00-4bf", "0-04bf"),
            format!("cc{}x", &WELL_FORMED[2..]),
        ] {
            assert_eq!(read(&[&wrong]), None, "{wrong}");
        }
        assert_eq!(read(&[WELL_FORMED, WELL_FORMED]), None, "ambiguous");
    }

    proptest! {
        #[test]
        fn arbitrary_span_context_round_trips(trace in 1_u128.., span in 1_u64.., sampled: bool) {
            let context = SpanContext { trace, span, sampled };
            prop_assert_eq!(read(&[context.header().to_str().unwrap()]), Some(context));
        }

        #[test]
        fn arbitrary_traceparent_text_is_parsed_or_ignored(text in "[ -~]{0,80}") {
            let _ = read(&[&text]);
        }
    }
}
