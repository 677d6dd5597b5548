//! The `date` header.

use std::{
    cell::RefCell,
    time::{SystemTime, UNIX_EPOCH},
};

use http::HeaderValue;
use jiff::{Timestamp, fmt::rfc2822};

/// Value if the clock cannot be represented.
const EPOCH: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

thread_local! {
    static VALUE: RefCell<(Date, HeaderValue)> =
        RefCell::new((Date::new(), HeaderValue::from_static(EPOCH)));
}

/// The current time in the format of HTTP (RFC 9110 5.6.7), formatted once a second.
#[derive(Debug)]
pub(crate) struct Date {
    second: u64,
    text: [u8; 29],
}

impl Date {
    pub(crate) fn new() -> Self {
        Self { second: 0, text: *b"Thu, 01 Jan 1970 00:00:00 GMT" }
    }

    /// The current time as a header value. Calls within the same second share one value.
    pub(crate) fn value() -> HeaderValue {
        VALUE.with_borrow_mut(|(date, value)| {
            let text = date.now();
            if value.as_bytes() != text {
                // Letters, digits, spaces, commas and colons are valid in header values.
                *value = HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(EPOCH));
            }
            value.clone()
        })
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "an answer says when it was made, and nothing is decided by it"
    )]
    pub(crate) fn now(&mut self) -> [u8; 29] {
        self.at(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    fn at(&mut self, second: u64) -> [u8; 29] {
        if self.second != second {
            let time = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            let text =
                time.and_then(|time| rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok());
            // Years above 9999 cannot be represented.
            if let Some(text) = text.and_then(|text| text.as_bytes().try_into().ok()) {
                (self.second, self.text) = (second, text);
            }
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_header_has_http_date_format() {
        let mut date = Date::new();
        for (second, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (1, "Thu, 01 Jan 1970 00:00:01 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&date.at(second)), Ok(text));
        }
    }
}
