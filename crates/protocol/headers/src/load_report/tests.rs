use std::collections::BTreeMap;

use tonic::metadata::{BinaryMetadataValue, MetadataValue};

use super::*;
use crate::orca::OrcaReport;

fn load(requests: Option<u32>, cpu: Option<u16>) -> Option<LoadReport> {
    Some(LoadReport { requests, cpu, ..LoadReport::default() })
}

fn base64(message: &[u8]) -> Vec<u8> {
    let value: BinaryMetadataValue = MetadataValue::from_bytes(message);
    value.as_encoded_bytes().to_vec()
}

fn text(value: &[u8]) -> Option<LoadReport> {
    load_from_text(value, None)
}

fn binary(value: &[u8]) -> Option<LoadReport> {
    load_from_binary(value, None)
}

#[test]
fn short_load_report_prefixes_match_reports_of_fairmesh_servers() {
    let own = base64(&OrcaReport::of_outstanding(3).to_binary());
    assert_eq!(
        own.strip_prefix(SHORT_BINARY).map(<[u8]>::len),
        Some(11),
        "{}",
        String::from_utf8_lossy(&own)
    );
    assert!(OrcaReport::of_outstanding(3).to_text().as_bytes().starts_with(SHORT_TEXT));
}

#[test]
fn load_reports_round_trip_in_both_formats() {
    let named = |name: &str| BTreeMap::from([(name.to_owned(), 9.0), (OUTSTANDING.to_owned(), 1_024.0)]);
    let reports = [
        (OrcaReport::of_outstanding(0), load(Some(0), None)),
        (OrcaReport::of_outstanding(1_023), load(Some(1_023), None)),
        (OrcaReport::of_outstanding(9_999_999), load(Some(9_999_999), None)),
        (OrcaReport { cpu_utilization: 0.3, ..OrcaReport::of_outstanding(4) }, load(Some(4), Some(300))),
        (OrcaReport { cpu_utilization: 1.5, ..OrcaReport::default() }, load(None, Some(1_500))),
        (
            OrcaReport { named_metrics: named("a"), eps: 2.0, ..OrcaReport::default() },
            load(Some(1_024), None),
        ),
        (OrcaReport { named_metrics: named("zone"), ..OrcaReport::default() }, load(Some(1_024), None)),
        (
            OrcaReport { mem_utilization: 0.5, request_cost: named("x"), ..OrcaReport::default() },
            load(None, None),
        ),
    ];
    for (report, expected) in reports {
        assert_eq!(text(report.to_text().as_bytes()), expected, "{report:?}");
        let mut encoded = base64(&report.to_binary());
        assert_eq!(binary(&encoded), expected, "{report:?}");
        encoded.resize(encoded.len().next_multiple_of(4), b'=');
        assert_eq!(binary(&encoded), expected, "padded: {report:?}");
        assert_eq!(text(&[b"BIN ", &*encoded].concat()), expected, "{report:?}");
    }
}

#[test]
fn load_reports_of_other_implementations_are_parsed() {
    let foreign = b"cpu=0.5, named_metrics.concurrent_requests=7.0, new_thing=many";
    assert_eq!(text(foreign), load(Some(7), Some(500)));
    assert_eq!(text(b"TEXT named_metrics.concurrent_requests=1234567"), load(Some(1_234_567), None));
    // Unknown fields of every wire type, followed by the CPU.
    let message =
        [&[0x78, 0x96, 0x01, 0x7d, 1, 2, 3, 4, 0x7a, 2, 9, 9, 0x09][..], &0.25_f64.to_le_bytes()].concat();
    assert_eq!(binary(&base64(&message)), load(None, Some(250)));
}

#[test]
fn implausible_load_reports_are_rejected() {
    for number in ["-1", "NaN", "inf", "-0.5", "1e8", "99999999999999999999", "", "x", "1 2"] {
        for name in ["named_metrics.concurrent_requests", "cpu_utilization"] {
            assert_eq!(text(format!("TEXT {name}={number}").as_bytes()), None, "{name}={number}");
        }
    }
    for value in ["", "TEXT ", "JSON {\"cpu_utilization\": 0.3}", "cpu_utilization", "BIN *", "\u{fffd}"] {
        assert_eq!(text(value.as_bytes()), None, "{value}");
    }
    for number in [-1.0, f64::NAN, f64::INFINITY, 1e8] {
        let named_metrics = BTreeMap::from([(OUTSTANDING.to_owned(), number)]);
        let report = OrcaReport { named_metrics, ..OrcaReport::default() };
        assert_eq!(binary(&base64(&report.to_binary())), None, "{number}");
        let report = OrcaReport { cpu_utilization: number, ..OrcaReport::default() };
        assert_eq!(binary(&base64(&report.to_binary())), None, "{number}");
    }
    let long = vec![b'A'; MAX_BINARY_LENGTH + 1];
    for value in [&b"A"[..], b"QUJ*", b"====", b"Qh4K,Qh4K", &long] {
        assert_eq!(binary(value), None, "{}", value.len());
    }
}

#[test]
fn malformed_load_report_bytes_do_not_panic() {
    let report = OrcaReport { cpu_utilization: 0.3, eps: 1.0, ..OrcaReport::of_outstanding(4) };
    let whole = base64(&report.to_binary());
    for length in 0..whole.len() {
        let _ = binary(&whole[..length]);
        for byte in [0, b'=', b'/', b'A', 0xff] {
            let mut changed = whole.clone();
            changed[length] = byte;
            let _ = binary(&changed);
            let _ = text(&changed);
        }
    }
}

#[test]
fn load_report_parser_reads_stream_count_and_policy_metric() {
    let named = |pairs: &[(&str, f64)]| pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    let report = OrcaReport {
        mem_utilization: 0.25,
        utilization: named(&[("disk", 0.5)]),
        named_metrics: named(&[(OUTSTANDING, 3.0), (STREAMS, 2.0), ("jobs", 7.0), ("bad", -1.0)]),
        ..OrcaReport::default()
    };
    let encoded = base64(&report.to_binary());
    let plain = LoadReport { requests: Some(3), streams: Some(2), ..LoadReport::default() };
    for (metric, thousandths) in
        [("jobs", Some(7_000)), ("disk", Some(500)), ("mem_utilization", Some(250)), ("absent", None)]
    {
        let expected = Some(LoadReport { metric: thousandths, ..plain });
        assert_eq!(load_from_text(report.to_text().as_bytes(), Some(metric)), expected, "{metric}");
        assert_eq!(load_from_binary(&encoded, Some(metric)), expected, "{metric}");
    }
    assert_eq!(binary(&encoded), Some(plain), "a metric that is not used may be invalid");
    assert_eq!(load_from_binary(&encoded, Some("bad")), None);
    assert_eq!(load_from_text(report.to_text().as_bytes(), Some("bad")), None);
}

#[test]
fn reported_load_metrics_are_listed_from_both_formats() {
    let named = BTreeMap::from([
        ("queue".to_owned(), 7.5),
        ("negative".to_owned(), -1.0),
        (OUTSTANDING.to_owned(), 3.0),
        (STREAMS.to_owned(), 1.0),
    ]);
    let report = OrcaReport {
        cpu_utilization: 0.3,
        mem_utilization: 0.5,
        eps: 2.0,
        application_utilization: 0.25,
        utilization: BTreeMap::from([("disk".to_owned(), 0.75)]),
        request_cost: BTreeMap::from([("rows".to_owned(), 12.0)]),
        named_metrics: named,
        ..OrcaReport::default()
    };
    let expected = [
        ("application_utilization", 0.25),
        ("disk", 0.75),
        ("eps", 2.0),
        ("mem_utilization", 0.5),
        ("queue", 7.5),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let of_text = |text: &[u8]| {
        let mut all = Vec::new();
        metrics_from_text(text, |name, value| all.push((name.to_owned(), value)));
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    };
    assert_eq!(of_text(report.to_text().as_bytes()), expected);
    let encoded = base64(&report.to_binary());
    assert_eq!(of_text(&[b"BIN ", &*encoded].concat()), expected);
    assert_eq!(
        of_text(b"named_metrics.a=1, utilization.b=x,c=NaN,d=2,e,f=3"),
        [("a".into(), 1.0), ("d".into(), 2.0)]
    );
    for malformed in ["", "TEXT ", "BIN ", "BIN ***", "JSON {}"] {
        assert_eq!(of_text(malformed.as_bytes()), []);
    }
}
