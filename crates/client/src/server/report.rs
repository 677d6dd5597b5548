//! Load reports as ORCA has them: text in a header of HTTP answers, protobuf in a binary trailer of gRPC answers.
//!
//! Nearly every answer of a server reports a small number of calls and no stream, so those values are laid out once a
//! process; only unusual ones are formatted per call.

use std::{fmt::Write as _, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::BinaryMetadataValue;

use super::Outstanding;
use crate::headers::{LOAD, LOAD_BIN, OUTSTANDING, STREAMS};

/// Counts below this one have their values ready.
const READY: u32 = 1024;

static TEXTS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(text));
static BINARIES: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(binary));

/// Lays values out in memory that lives as long as the process: a clone of such a value touches no reference count,
/// which all cores would otherwise fight for.
fn ready(format: fn(Outstanding) -> String) -> Vec<HeaderValue> {
    let all = (0..READY).map(|calls| format(Outstanding { calls, streams: 0 }));
    all.map(|text| HeaderValue::from_static(text.leak())).collect()
}

/// Adds the report of an HTTP answer.
pub(super) fn add_text(headers: &mut HeaderMap, load: Outstanding) {
    add(headers, LOAD, load, &TEXTS, text);
}

/// Adds the report of a gRPC answer.
pub(super) fn add_binary(trailers: &mut HeaderMap, load: Outstanding) {
    add(trailers, LOAD_BIN, load, &BINARIES, binary);
}

fn add(
    headers: &mut HeaderMap,
    name: HeaderName,
    load: Outstanding,
    ready: &[HeaderValue],
    format: fn(Outstanding) -> String,
) {
    let value = match ready.get(load.calls as usize) {
        Some(value) if load.streams == 0 => Some(value.clone()),
        _ => HeaderValue::try_from(format(load)).ok(),
    };
    if let Some(value) = value {
        // A full header map is no reason to lose the answer: then the report is what is left out.
        let _ = headers.try_insert(name, value);
    }
}

/// The text form, `TEXT name=value,…`.
fn text(load: Outstanding) -> String {
    let mut text = format!("TEXT named_metrics.{OUTSTANDING}={}", load.calls);
    if load.streams > 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, ",named_metrics.{STREAMS}={}", load.streams);
    }
    text
}

/// The protobuf form in base64, as gRPC writes binary metadata.
fn binary(load: Outstanding) -> String {
    let mut message = Vec::with_capacity(64);
    put_named_metric(&mut message, OUTSTANDING, load.calls);
    if load.streams > 0 {
        put_named_metric(&mut message, STREAMS, load.streams);
    }
    let encoded = BinaryMetadataValue::from_bytes(&message);
    // Base64 is ASCII.
    String::from_utf8_lossy(encoded.as_encoded_bytes()).into_owned()
}

/// One entry of `map<string, double> named_metrics = 8`; written by hand, since the generated message would build the
/// map first. Names are under 100 bytes, so every length is one byte.
fn put_named_metric(message: &mut Vec<u8>, name: &str, value: u32) {
    const NAMED_METRICS: u8 = 8 << 3 | 2;
    const KEY: u8 = 1 << 3 | 2;
    const VALUE: u8 = 2 << 3 | 1;
    let length = name.len() as u8;
    message.extend([NAMED_METRICS, 2 + length + 9, KEY, length]);
    message.extend(name.as_bytes());
    message.push(VALUE);
    message.extend(f64::from(value).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataMap;

    use super::*;
    use crate::headers::OrcaReport;

    #[test]
    fn callers_read_what_is_written_in_both_forms() {
        for (calls, streams) in [(0, 0), (7, 0), (READY - 1, 0), (READY, 0), (3, 2), (u32::MAX, 1)] {
            let load = Outstanding { calls, streams };
            let mut headers = HeaderMap::new();
            add_text(&mut headers, load);
            let from_text = OrcaReport::from_text(headers[LOAD].to_str().unwrap()).unwrap();
            add_binary(&mut headers, load);
            let metadata = MetadataMap::from_headers(headers);
            let bytes = metadata.get_bin(LOAD_BIN.as_str()).unwrap().to_bytes().unwrap();
            let from_binary = OrcaReport::from_binary(&bytes).unwrap();
            assert_eq!(from_text, from_binary);
            assert_eq!(from_text.outstanding(), Some(calls));
            let reported = from_text.named_metrics.get(STREAMS).copied();
            assert_eq!(reported, (streams > 0).then_some(streams.into()));
        }
    }
}
