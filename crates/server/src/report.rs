//! Load reports as ORCA has them: text in a header of HTTP answers, protobuf in a binary trailer of gRPC answers.
//!
//! Where the CPU is not known, nearly every answer reports a small number of calls and no stream: those values are laid
//! out once a process. With the CPU there would be too many.

use std::{fmt::Write as _, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::BinaryMetadataValue;

use super::{Outstanding, load::Report, metrics::Metrics};
use fairmesh_headers::{
    LOAD, LOAD_BIN, OUTSTANDING, STREAMS, load_from_binary, load_from_text, message_of_binary,
};

/// Counts below this one have their values ready.
const READY: u32 = 1024;

static TEXTS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(text));
static BINARIES: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| ready(binary));
static NO_METRICS: Metrics = Metrics::none();

/// Writes a report, and what the service said in one of its own that is well formed.
type Format = fn(Report<'_>, Option<&str>) -> String;

/// Lays values out in memory that lives as long as the process: a clone of such a value touches no reference count,
/// which all cores would otherwise fight for.
fn ready(format: Format) -> Vec<HeaderValue> {
    let report =
        |calls| Report { outstanding: Outstanding { calls, streams: 0 }, cpu: None, metrics: &NO_METRICS };
    (0..READY).map(|calls| HeaderValue::from_static(format(report(calls), None).leak())).collect()
}

/// Adds the report of an HTTP answer.
pub(super) fn add_text(headers: &mut HeaderMap, load: Report<'_>) {
    add(headers, LOAD, load, &TEXTS, text);
}

/// Adds the report of a gRPC answer.
pub(super) fn add_binary(trailers: &mut HeaderMap, load: Report<'_>) {
    add(trailers, LOAD_BIN, load, &BINARIES, binary);
}

fn add(headers: &mut HeaderMap, name: HeaderName, load: Report<'_>, ready: &[HeaderValue], format: Format) {
    let said = headers.get(&name).map(|said| said.to_str().unwrap_or_default());
    let is_plain =
        load.outstanding.streams == 0 && load.cpu.is_none() && load.metrics.is_empty() && said.is_none();
    let value = match ready.get(load.outstanding.calls as usize) {
        Some(value) if is_plain => Some(value.clone()),
        _ => HeaderValue::try_from(format(load, said)).ok(),
    };
    if let Some(value) = value {
        // A full header map is no reason to lose the answer: then the report is what is left out.
        let _ = headers.try_insert(name, value);
    }
}

/// The text form, `TEXT name=value,…`; `BIN` and the binary form where the service chose that.
fn text(load: Report<'_>, said: Option<&str>) -> String {
    let said = said.filter(|said| load_from_text(said.as_bytes(), None).is_some());
    if let Some(message) = said.and_then(|said| said.strip_prefix("BIN ")) {
        return format!("BIN {}", binary(load, Some(message)));
    }
    let own = pairs(load);
    let mut text = String::with_capacity(96);
    text.push_str("TEXT ");
    let said = said.map(|said| said.strip_prefix("TEXT ").unwrap_or(said));
    for pair in said.into_iter().flat_map(|said| said.split(',')) {
        // Some readers refuse a report that names anything twice.
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

fn pairs(Report { outstanding: Outstanding { calls, streams }, cpu, metrics }: Report<'_>) -> String {
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

/// The protobuf form in base64, as gRPC writes binary metadata. Two messages one after the other are one, in which the later
/// says what both do.
fn binary(load: Report<'_>, said: Option<&str>) -> String {
    const CPU_UTILIZATION: u8 = 1 << 3 | 1;
    let Report { outstanding: Outstanding { calls, streams }, cpu, metrics } = load;
    let said = said.map(str::as_bytes).filter(|said| load_from_binary(said, None).is_some());
    let mut message = said.and_then(message_of_binary).unwrap_or_else(|| Vec::with_capacity(96));
    if let Some(cpu) = cpu {
        message.push(CPU_UTILIZATION);
        // Protobuf does not tell 0 from nothing said.
        message.extend((f64::from(cpu.max(1)) / 1000.0).to_le_bytes());
    }
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

/// One entry of `map<string, double> named_metrics = 8`; written by hand, since the generated message would build the
/// map first. Names are under 100 bytes, so every length is one byte.
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
    use fairmesh_headers::orca::OrcaReport;

    #[test]
    fn callers_read_what_is_written_in_both_forms() {
        let cpus = [None, Some(1), Some(437), Some(1500)];
        let counts = [(0, 0), (7, 0), (READY - 1, 0), (READY, 0), (3, 2), (u32::MAX, 1)];
        for ((calls, streams), cpu) in counts.into_iter().flat_map(|c| cpus.map(|cpu| (c, cpu))) {
            let load = Report { outstanding: Outstanding { calls, streams }, cpu, metrics: &NO_METRICS };
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

    /// What callers read in a report that was added to `said`, in the text or the binary form.
    fn merged(said: &'static str, binary: bool, cpu: Option<u16>) -> OrcaReport {
        let metrics = Metrics::none();
        metrics.set("queue", 12.5).unwrap();
        let load = Report { outstanding: Outstanding { calls: 3, streams: 0 }, cpu, metrics: &metrics };
        let name = if binary { LOAD_BIN } else { LOAD };
        let mut headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(said))]);
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
                OrcaReport::from_binary(&message_of_binary(value.as_bytes()).unwrap()).unwrap()
            }
        }
    }

    #[test]
    fn what_the_service_says_itself_stays_beside_what_the_layer_says() {
        let said = |cpu_utilization| OrcaReport {
            cpu_utilization,
            eps: 2.0,
            named_metrics: [("jobs".to_owned(), 7.0), (OUTSTANDING.to_owned(), 99.0)].into(),
            ..OrcaReport::default()
        };
        let both = |cpu_utilization| OrcaReport {
            named_metrics: [("jobs", 7.0), ("queue", 12.5), (OUTSTANDING, 3.0)]
                .map(|(n, v)| (n.to_owned(), v))
                .into(),
            ..said(cpu_utilization)
        };
        let encode = |report: &OrcaReport| {
            let message = BinaryMetadataValue::from_bytes(&report.to_binary());
            String::from_utf8(message.as_encoded_bytes().to_vec()).unwrap()
        };
        let binary = &*encode(&said(0.9)).leak();
        for (said, is_binary) in [
            (&*said(0.9).to_text().leak(), false),
            ("cpu=0.9, eps=2,named_metrics.jobs=7 ,named_metrics.concurrent_requests=99", false),
            (&*format!("BIN {binary}").leak(), false),
            (binary, true),
        ] {
            assert_eq!(merged(said, is_binary, None), both(0.9), "{said}");
            assert_eq!(merged(said, is_binary, Some(250)), both(0.25), "{said}");
        }
    }

    #[test]
    fn a_report_that_nobody_could_read_is_replaced() {
        let own = [("queue", 12.5), (OUTSTANDING, 3.0)].map(|(name, value)| (name.to_owned(), value));
        let own = OrcaReport { named_metrics: own.into(), ..OrcaReport::default() };
        for said in ["", "JSON {\"eps\": 1}", "nonsense", "cpu=-1,eps=2", "BIN !"] {
            assert_eq!(merged(said, false, None), own, "{said}");
        }
        for said in ["", "nonsense!", "////"] {
            assert_eq!(merged(said, true, None), own, "{said}");
        }
    }
}
