//! Load reports as ORCA has them: text in a header of HTTP answers, protobuf in a binary trailer of gRPC answers.
//!
//! Where the CPU is not known, nearly every answer reports a small number of calls and no stream: those values are laid
//! out once a process. With the CPU there would be too many.

use std::{fmt::Write as _, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::BinaryMetadataValue;

use super::{Outstanding, load::Report};
use crate::headers::{LOAD, LOAD_BIN, OUTSTANDING, STREAMS};

/// Counts below this one have their values ready.
const READY: u32 = 1024;

static TEXTS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(text));
static BINARIES: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(binary));

/// Lays values out in memory that lives as long as the process: a clone of such a value touches no reference count,
/// which all cores would otherwise fight for.
fn ready(format: fn(Report) -> String) -> Vec<HeaderValue> {
    let all =
        (0..READY).map(|calls| format(Report { outstanding: Outstanding { calls, streams: 0 }, cpu: None }));
    all.map(|text| HeaderValue::from_static(text.leak())).collect()
}

/// Adds the report of an HTTP answer.
pub(super) fn add_text(headers: &mut HeaderMap, load: Report) {
    add(headers, LOAD, load, &TEXTS, text);
}

/// Adds the report of a gRPC answer.
pub(super) fn add_binary(trailers: &mut HeaderMap, load: Report) {
    add(trailers, LOAD_BIN, load, &BINARIES, binary);
}

fn add(
    headers: &mut HeaderMap,
    name: HeaderName,
    load: Report,
    ready: &[HeaderValue],
    format: fn(Report) -> String,
) {
    let value = match ready.get(load.outstanding.calls as usize) {
        Some(value) if load.outstanding.streams == 0 && load.cpu.is_none() => Some(value.clone()),
        _ => HeaderValue::try_from(format(load)).ok(),
    };
    if let Some(value) = value {
        // A full header map is no reason to lose the answer: then the report is what is left out.
        let _ = headers.try_insert(name, value);
    }
}

/// The text form, `TEXT name=value,…`.
fn text(Report { outstanding: Outstanding { calls, streams }, cpu }: Report) -> String {
    let mut text = String::with_capacity(96);
    text.push_str("TEXT ");
    // Writing to a String cannot fail.
    if let Some(cpu) = cpu {
        let _ = write!(text, "cpu_utilization={}.{:03},", cpu / 1000, cpu % 1000);
    }
    let _ = write!(text, "named_metrics.{OUTSTANDING}={calls}");
    if streams > 0 {
        let _ = write!(text, ",named_metrics.{STREAMS}={streams}");
    }
    text
}

/// The protobuf form in base64, as gRPC writes binary metadata.
fn binary(Report { outstanding: Outstanding { calls, streams }, cpu }: Report) -> String {
    const CPU_UTILIZATION: u8 = 1 << 3 | 1;
    let mut message = Vec::with_capacity(96);
    if let Some(cpu) = cpu {
        message.push(CPU_UTILIZATION);
        // Protobuf does not tell 0 from nothing said.
        message.extend((f64::from(cpu.max(1)) / 1000.0).to_le_bytes());
    }
    put_named_metric(&mut message, OUTSTANDING, calls);
    if streams > 0 {
        put_named_metric(&mut message, STREAMS, streams);
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
        let cpus = [None, Some(1), Some(437), Some(1500)];
        let counts = [(0, 0), (7, 0), (READY - 1, 0), (READY, 0), (3, 2), (u32::MAX, 1)];
        for ((calls, streams), cpu) in counts.into_iter().flat_map(|c| cpus.map(|cpu| (c, cpu))) {
            let load = Report { outstanding: Outstanding { calls, streams }, cpu };
            let mut headers = HeaderMap::new();
            add_text(&mut headers, load);
            let from_text = OrcaReport::from_text(headers[LOAD].to_str().unwrap()).unwrap();
            add_binary(&mut headers, load);
            let metadata = MetadataMap::from_headers(headers);
            let bytes = metadata.get_bin(LOAD_BIN.as_str()).unwrap().to_bytes().unwrap();
            let from_binary = OrcaReport::from_binary(&bytes).unwrap();
            assert_eq!(from_text, from_binary);
            assert_eq!(from_text.outstanding(), Some(calls));
            let share = cpu.map_or(0.0, |cpu| f64::from(cpu) / 1000.0);
            assert!((from_text.cpu_utilization - share).abs() < 1e-9, "{from_text:?}");
            let reported = from_text.named_metrics.get(STREAMS).copied();
            assert_eq!(reported, (streams > 0).then_some(streams.into()));
        }
    }
}
