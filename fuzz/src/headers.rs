//! What a peer writes into headers never makes a call panic, and what we write ourselves we read as it was meant.
#![no_main]

use std::time::Duration;

use fairmesh_client::headers::{
    DEADLINE, GRPC_TIMEOUT, OrcaReport, encode_grpc_timeout, grpc_timeout, read_deadline, write_deadline,
};
use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;

/// The longest time that a `grpc-timeout` of eight digits can tell.
const LONGEST: Duration = Duration::from_secs(99_999_999 * 3600);

fuzz_target!(|input: (&[u8], &[u8], u64, u32)| {
    let (first, second, seconds, nanos) = input;
    orca(first);
    incoming(first, second);
    outgoing(Duration::new(seconds, nanos % 1_000_000_000));
});

fn orca(bytes: &[u8]) {
    if let Some(report) = std::str::from_utf8(bytes).ok().and_then(OrcaReport::from_text) {
        let _ = report.outstanding();
        let text = report.to_text();
        // Zero means not reported, so a report of zeros only has no text.
        if report != OrcaReport::default() {
            assert_eq!(OrcaReport::from_text(&text), Some(report.clone()), "{text}");
        }
        assert_eq!(OrcaReport::from_binary(&report.to_binary()), Some(report));
    }
    if let Some(report) = OrcaReport::from_binary(bytes) {
        let _ = report.outstanding();
        let _ = OrcaReport::from_text(&report.to_text());
        // By bytes, since a peer may send NaN.
        let binary = report.to_binary();
        assert_eq!(OrcaReport::from_binary(&binary).map(|again| again.to_binary()), Some(binary));
    }
}

fn incoming(ours: &[u8], grpc: &[u8]) {
    let mut headers = HeaderMap::new();
    let pairs = [(DEADLINE, ours), (GRPC_TIMEOUT, grpc)];
    for (name, value) in pairs {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let deadline = read_deadline(&headers);
    if let Some(timeout) = grpc_timeout(grpc) {
        assert!(timeout <= LONGEST && deadline.is_some_and(|deadline| deadline <= timeout), "{deadline:?}");
    }
}

fn outgoing(left: Duration) {
    let told = grpc_timeout(encode_grpc_timeout(left).as_bytes()).expect("we write what we read");
    assert!(told <= left, "{told:?} is more than the {left:?} that are left");
    // Never less than by one part in some thousand, but for what is beyond a microsecond or beyond eight digits.
    assert!(
        told >= left.min(LONGEST).mul_f64(0.999).saturating_sub(Duration::from_micros(1)),
        "{told:?} of {left:?}"
    );
    let mut headers = HeaderMap::new();
    write_deadline(&mut headers, left, true);
    assert!(read_deadline(&headers).is_some_and(|told| told <= left), "{headers:?}");
}
