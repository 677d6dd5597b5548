use std::time::Duration;

use fairmesh_metrics::{
    CallOutcome, CallSeries, DurationFamily, Register as _, Side, TraceExemplar, families,
};
use http::header::ACCEPT;

use super::*;
use crate::Readiness;

const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,*/*;q=0.1";

#[derive(Default)]
struct Toy(CallSeries);

impl Process for Toy {
    const KIND: &'static str = "agent";

    fn register(&self, metrics: &mut Registry) {
        let agent = metrics.sub_registry_with_prefix("agent");
        agent.counter("deltas", "Deltas received", 7_u64);
        agent.counters("closed", "Closed", [([("by", "\"a\\b\"\n".into())], 1_u64)]);
    }

    fn calls(&self) -> Vec<DurationFamily> {
        families(Side::Client, self.0.rows("shop/web", "shop/cart"))
    }

    async fn readiness(&self) -> Readiness {
        Readiness::ready()
    }
}

fn read(toy: &Toy, accept: Option<&'static str>) -> (String, Vec<u8>) {
    let accept = accept.map(|accept| (ACCEPT, http::HeaderValue::from_static(accept)));
    let response = page(&gather(toy, None), &accept.into_iter().collect());
    let form = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
    (form, response.into_body())
}

fn read_text(toy: &Toy, accept: Option<&'static str>) -> (String, String) {
    let (form, body) = read(toy, accept);
    (form, String::from_utf8(body).unwrap())
}

/// Returns a process with three calls, one of which belongs to a trace.
fn called() -> Toy {
    let toy = Toy::default();
    let exemplar = TraceExemplar { trace: 0xab, span: 0xcd, at: Duration::from_millis(1_500) };
    for (ms, exemplar) in [(1_000, None), (1_050, Some(exemplar)), (2_000, None)] {
        let outcome = CallOutcome::Http { method: "GET", status: 200 };
        toy.0.record(None, outcome, Duration::from_millis(ms), exemplar);
    }
    toy
}

#[test]
fn metrics_default_to_prometheus_text() {
    for accept in [None, Some("text/plain"), Some("*/*"), Some("text/html,*/*;q=0.8")] {
        let (form, text) = read_text(&called(), accept);
        assert_eq!(form, "text/plain; version=0.0.4; charset=utf-8", "{accept:?}");
        assert!(text.contains("# TYPE fairmesh_agent_deltas_total counter\nfairmesh_agent_deltas_total 7\n"));
        assert!(text.contains("# HELP fairmesh_agent_deltas_total Deltas received\n"), "{text}");
        assert!(
            text.contains("# TYPE fairmesh_build_info gauge\nfairmesh_build_info{process=\"agent\",version=")
        );
        assert!(text.contains(r#"fairmesh_agent_closed_total{by="\"a\\b\"\n"} 1"#), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT") && !text.contains("trace_id"), "{text}");
    }
}

#[test]
fn openmetrics_is_served_on_request_with_process_metrics() {
    let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
        application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let (form, text) = read_text(&called(), Some(prometheus));
    assert_eq!(form, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("# EOF\n") && text.contains("# TYPE fairmesh_agent_deltas counter\n"), "{text}");
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e5 && value("process_open_fds") >= 3.0);
    assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
    assert!(value("process_max_fds") >= value("process_open_fds") && value("process_threads") >= 1.0);
    assert!(value("process_cpu_seconds_total") > 0.0 && value("process_start_time_seconds") > 1.5e9);
}

#[test]
fn openmetrics_has_exemplars_with_trace_ids() {
    let (_, text) = read_text(&called(), Some("application/openmetrics-text"));
    let bucket = "http_client_request_duration_seconds_bucket{fairmesh_caller=\"shop/web\",fairmesh_callee=\
        \"shop/cart\",http_request_method=\"GET\",http_response_status_code=\"200\",le=\"2.0\"} 3 # {trace_id=\
        \"000000000000000000000000000000ab\",span_id=\"00000000000000cd\"} 1.05 1.500\n";
    assert!(text.contains(bucket), "{bucket} in {text}");
    assert!(text.contains("# UNIT http_client_request_duration_seconds seconds\n"), "{text}");
}

#[test]
fn protobuf_has_native_histograms_with_exemplars() {
    let (form, body) = read(&called(), Some(PROTOBUF));
    assert_eq!(
        form,
        "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    );
    let (mut rest, mut families) = (&body[..], Vec::new());
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
    }
    let find = |name: &str| families.iter().find(|family| family.name == name).unwrap();
    assert_eq!(find("fairmesh_agent_deltas_total").metric[0].counter.as_ref().unwrap().value, 7.0);
    let histogram = find("http_client_request_duration_seconds").metric[0].histogram.as_ref().unwrap();
    assert_eq!((histogram.schema, histogram.sample_count, histogram.sample_sum), (3, 3, 4.05));
    let spans: Vec<_> = histogram.positive_span.iter().map(|span| (span.offset, span.length)).collect();
    assert_eq!((spans, &histogram.positive_delta[..]), (vec![(0, 2), (6, 1)], &[1, 0, 0][..]));
    let exemplar = &histogram.exemplars[0];
    assert_eq!(exemplar.label[0].value, "000000000000000000000000000000ab");
    assert!(exemplar.timestamp.is_some(), "Prometheus drops exemplars of native histograms without a time");
}
