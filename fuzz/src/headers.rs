//! Headers of a peer never make a call panic, and our own headers are parsed to the values that were written.

use std::time::Duration;

use arbitrary::{Arbitrary as _, Unstructured};
use fairmesh_headers::{
    DEADLINE, GRPC_TIMEOUT, encode_grpc_timeout, grpc_timeout, load_from_binary, load_from_text,
    read_deadline, write_deadline,
};
use http::{HeaderMap, HeaderValue};

/// The longest time that a `grpc-timeout` of eight digits can tell.
const LONGEST: Duration = Duration::from_secs(99_999_999 * 3600);

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let taken = <(&[u8], &[u8], u64, u32)>::arbitrary_take_rest(Unstructured::new(data));
    let Ok((first, second, seconds, nanos)) = taken else { return };
    load(first);
    incoming(first, second);
    outgoing(Duration::new(seconds, nanos % 1_000_000_000));
}

/// A metric of a report is read by name as well.
fn load(bytes: &[u8]) {
    for read in [load_from_text, load_from_binary] {
        let (plain, named) = (read(bytes, None), read(bytes, Some("x")));
        if let (Some(plain), Some(named)) = (plain, named) {
            assert_eq!(
                (plain.requests, plain.streams, plain.cpu),
                (named.requests, named.streams, named.cpu)
            );
        }
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
    write_deadline(&mut headers, Some(left), true);
    assert!(read_deadline(&headers).is_some_and(|told| told <= left), "{headers:?}");
}
