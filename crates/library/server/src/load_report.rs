//! Load reports in ORCA form: text in a header of HTTP responses, protobuf in a binary trailer of gRPC responses.
//!
//! If the CPU utilization is unknown, almost every response reports a small number of calls and no stream. These values
//! are encoded once per process. With the CPU utilization there would be too many of them.

pub(crate) mod custom_metrics;
pub(crate) mod response_metrics;

use std::{fmt::Write as _, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::BinaryMetadataValue;

use self::custom_metrics::Metrics;
use crate::{Outstanding, layer::server_load::LoadSnapshot};
use fairmesh_headers::{
    LOAD, LOAD_BIN, OUTSTANDING, STREAMS, decode_binary_report, load_from_binary, load_from_text,
};

/// Counts below this value have pre-encoded reports.
const PREENCODED: u32 = 1024;

static TEXTS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| preencoded(text));
static BINARIES: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| preencoded(binary));
static NO_METRICS: Metrics = Metrics::none();

/// Function that encodes a report, merged with the service's own well-formed report.
type Format = fn(LoadSnapshot<'_>, Option<&str>) -> String;

/// Encodes reports in advance. The values are leaked on purpose: cloning a static value touches no reference count,
/// on which all cores would contend.
fn preencoded(format: Format) -> Vec<HeaderValue> {
    let report = |calls| LoadSnapshot {
        outstanding: Outstanding { calls, streams: 0 },
        cpu: None,
        metrics: &NO_METRICS,
    };
    (0..PREENCODED).map(|calls| HeaderValue::from_static(format(report(calls), None).leak())).collect()
}

/// Adds the report of an HTTP response.
pub(crate) fn add_text(headers: &mut HeaderMap, load: LoadSnapshot<'_>) {
    add(headers, LOAD, load, &TEXTS, text);
}

/// Adds the report of a gRPC response.
pub(crate) fn add_binary(trailers: &mut HeaderMap, load: LoadSnapshot<'_>) {
    add(trailers, LOAD_BIN, load, &BINARIES, binary);
}

fn add(
    headers: &mut HeaderMap,
    name: HeaderName,
    load: LoadSnapshot<'_>,
    preencoded: &[HeaderValue],
    format: Format,
) {
    let existing = headers.get(&name).map(|existing| existing.to_str().unwrap_or_default());
    let is_plain =
        load.outstanding.streams == 0 && load.cpu.is_none() && load.metrics.is_empty() && existing.is_none();
    let value = match preencoded.get(load.outstanding.calls as usize) {
        Some(value) if is_plain => Some(value.clone()),
        _ => HeaderValue::try_from(format(load, existing)).ok(),
    };
    if let Some(value) = value {
        // If the header map is full, the report is dropped rather than the response.
        let _ = headers.try_insert(name, value);
    }
}

/// Encodes the text form, `TEXT name=value,…`; or `BIN` and the binary form if the service chose that.
fn text(load: LoadSnapshot<'_>, existing: Option<&str>) -> String {
    let existing = existing.filter(|existing| load_from_text(existing.as_bytes(), None).is_some());
    if let Some(message) = existing.and_then(|existing| existing.strip_prefix("BIN ")) {
        return format!("BIN {}", binary(load, Some(message)));
    }
    let existing = existing.map(|existing| existing.strip_prefix("TEXT ").unwrap_or(existing));
    // The service knows its own utilization better: this process may only be a proxy in front of it.
    let has_cpu = existing.is_some_and(|existing| existing.split(',').any(|pair| name_of(pair) == CPU));
    let own = pairs(LoadSnapshot { cpu: load.cpu.filter(|_| !has_cpu), ..load });
    let mut text = String::with_capacity(96);
    text.push_str("TEXT ");
    for pair in existing.into_iter().flat_map(|existing| existing.split(',')) {
        // Some parsers reject a report with a repeated name.
        if own.split(',').all(|own| name_of(own) != name_of(pair)) {
            text.push_str(pair);
            text.push(',');
        }
    }
    text + &own
}

fn name_of(pair: &str) -> &str {
    match pair.split('=').next().unwrap_or_default().trim() {
        "cpu" => CPU,
        name => name,
    }
}

const CPU: &str = "cpu_utilization";

fn pairs(
    LoadSnapshot { outstanding: Outstanding { calls, streams }, cpu, metrics }: LoadSnapshot<'_>,
) -> String {
    let mut pairs = String::with_capacity(96);
    // Writing to a String cannot fail.
    if let Some(cpu) = cpu {
        let _ = write!(pairs, "{CPU}={}.{:03},", cpu / 1000, cpu % 1000);
    }
    let _ = write!(pairs, "named_metrics.{OUTSTANDING}={calls}");
    if streams > 0 {
        let _ = write!(pairs, ",named_metrics.{STREAMS}={streams}");
    }
    for (name, value) in metrics.values() {
        let _ = write!(pairs, ",named_metrics.{name}={value}");
    }
    pairs
}

/// Encodes the protobuf form in base64, as gRPC encodes binary metadata. The report concatenates two messages: the
/// service's own CPU utilization, then the counts of this process. Protobuf reads them as one message in which later
/// fields win.
fn binary(load: LoadSnapshot<'_>, existing: Option<&str>) -> String {
    const CPU_UTILIZATION: u8 = 1 << 3 | 1;
    let LoadSnapshot { outstanding: Outstanding { calls, streams }, cpu, metrics } = load;
    let existing = existing.map(str::as_bytes).filter(|existing| load_from_binary(existing, None).is_some());
    let mut message = Vec::with_capacity(96);
    if let Some(cpu) = cpu {
        message.push(CPU_UTILIZATION);
        // Protobuf does not distinguish 0 from an absent field.
        message.extend((f64::from(cpu.max(1)) / 1000.0).to_le_bytes());
    }
    message.extend(existing.and_then(decode_binary_report).unwrap_or_default());
    put_named_metric(&mut message, OUTSTANDING, calls.into());
    if streams > 0 {
        put_named_metric(&mut message, STREAMS, streams.into());
    }
    for (name, value) in metrics.values() {
        put_named_metric(&mut message, name, value);
    }
    let encoded = BinaryMetadataValue::from_bytes(&message);
    // Base64 is ASCII.
    String::from_utf8_lossy(encoded.as_encoded_bytes()).into_owned()
}

/// Appends an entry of `map<string, double> named_metrics = 8`. Encoded by hand, since the generated message would
/// first build the map. Names are shorter than 100 bytes, so every length takes one byte.
fn put_named_metric(message: &mut Vec<u8>, name: &str, value: f64) {
    const NAMED_METRICS: u8 = 8 << 3 | 2;
    const KEY: u8 = 1 << 3 | 2;
    const VALUE: u8 = 2 << 3 | 1;
    let length = name.len() as u8;
    message.extend([NAMED_METRICS, 2 + length + 9, KEY, length]);
    message.extend(name.as_bytes());
    message.push(VALUE);
    message.extend(value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataMap;

    use super::*;
    use crate::tests::orca::OrcaReport;

    #[test]
    fn load_report_round_trips_in_both_forms() {
        let cpus = [None, Some(1), Some(437), Some(1500)];
        let counts = [(0, 0), (7, 0), (PREENCODED - 1, 0), (PREENCODED, 0), (3, 2), (u32::MAX, 1)];
        for ((calls, streams), cpu) in counts.into_iter().flat_map(|c| cpus.map(|cpu| (c, cpu))) {
            let load =
                LoadSnapshot { outstanding: Outstanding { calls, streams }, cpu, metrics: &NO_METRICS };
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

    /// Returns the result of merging with `existing`, in text or binary form.
    fn merged(existing: &'static str, binary: bool, cpu: Option<u16>) -> OrcaReport {
        let metrics = Metrics::none();
        metrics.set("queue", 12.5).unwrap();
        let load = LoadSnapshot { outstanding: Outstanding { calls: 3, streams: 0 }, cpu, metrics: &metrics };
        let name = if binary { LOAD_BIN } else { LOAD };
        let mut headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(existing))]);
        match binary {
            true => add_binary(&mut headers, load),
            false => add_text(&mut headers, load),
        }
        let value = headers[name].to_str().unwrap().to_owned();
        match value.strip_prefix("TEXT ") {
            Some(pairs) => {
                let names = || pairs.split(',').map(name_of);
                assert_eq!(
                    names().count(),
                    names().collect::<std::collections::BTreeSet<_>>().len(),
                    "{value}"
                );
                OrcaReport::from_text(&value).unwrap()
            }
            None => {
                let value = value.strip_prefix("BIN ").unwrap_or(&value);
                OrcaReport::from_binary(&decode_binary_report(value.as_bytes()).unwrap()).unwrap()
            }
        }
    }

    #[test]
    fn program_load_report_is_merged_with_server_metrics() {
        let existing = |cpu_utilization| OrcaReport {
            cpu_utilization,
            eps: 2.0,
            named_metrics: [("jobs".to_owned(), 7.0), (OUTSTANDING.to_owned(), 99.0)].into(),
            ..OrcaReport::default()
        };
        let both = |cpu_utilization| OrcaReport {
            named_metrics: [("jobs", 7.0), ("queue", 12.5), (OUTSTANDING, 3.0)]
                .map(|(n, v)| (n.to_owned(), v))
                .into(),
            ..existing(cpu_utilization)
        };
        let encode = |report: &OrcaReport| {
            let message = BinaryMetadataValue::from_bytes(&report.to_binary());
            String::from_utf8(message.as_encoded_bytes().to_vec()).unwrap()
        };
        let binary = &*encode(&existing(0.9)).leak();
        for (existing, is_binary) in [
            (&*existing(0.9).to_text().leak(), false),
            ("cpu=0.9, eps=2,named_metrics.jobs=7 ,named_metrics.concurrent_requests=99", false),
            (&*format!("BIN {binary}").leak(), false),
            (binary, true),
        ] {
            assert_eq!(merged(existing, is_binary, None), both(0.9), "{existing}");
            assert_eq!(merged(existing, is_binary, Some(250)), both(0.9), "{existing}");
        }
    }

    #[test]
    fn malformed_program_load_report_is_replaced() {
        let own = [("queue", 12.5), (OUTSTANDING, 3.0)].map(|(name, value)| (name.to_owned(), value));
        let own = OrcaReport { named_metrics: own.into(), ..OrcaReport::default() };
        for existing in ["", "JSON {\"eps\": 1}", "nonsense", "cpu=-1,eps=2", "BIN !"] {
            assert_eq!(merged(existing, false, None), own, "{existing}");
        }
        for existing in ["", "nonsense!", "////"] {
            assert_eq!(merged(existing, true, None), own, "{existing}");
        }
    }
}
