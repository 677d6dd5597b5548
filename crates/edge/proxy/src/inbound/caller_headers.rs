//! Headers that describe the caller to the program. Values that the caller sends are replaced.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::IpAddr,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_headers::{CALLER, is_spelling_of, remove_all_spellings};
use fairmesh_model::arith::mix64;
use fairmesh_server::Caller;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The certificates on the caller's side, in Envoy's format.
const CLIENT_CERTIFICATE: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Request ids: a counter with a random start. Its mixed values do not repeat.
static IDS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0)));

/// Sets the headers that identify the caller, and removes all headers that could claim an identity.
/// `certificate` describes the certificate of the connection, which may be an intermediary's.
pub(crate) fn set_identity(
    headers: &mut HeaderMap,
    caller: Option<&Caller>,
    certificate: Option<&HeaderValue>,
) {
    remove_claims(headers);
    // SPIFFE IDs are ASCII without controls.
    if let Some(id) = caller.and_then(|caller| HeaderValue::try_from(caller.verified().as_str()).ok()) {
        headers.insert(CALLER, id);
    }
    if let Some(certificate) = certificate {
        headers.insert(CLIENT_CERTIFICATE, certificate.clone());
    }
}

/// Removes identity claims from headers or trailers.
pub(crate) fn remove_claims(headers: &mut HeaderMap) {
    remove_all_spellings(headers, &[CALLER, CLIENT_CERTIFICATE]);
}

/// Removes headers with other spellings that programs may read as `name`, because they could replace the value that
/// this proxy sets.
fn remove_other_spellings(headers: &mut HeaderMap, name: &HeaderName) {
    let is_other = |spelling: &&HeaderName| *spelling != name && is_spelling_of(spelling.as_str(), name);
    let others: Vec<_> = headers.keys().filter(is_other).cloned().collect();
    for spelling in others {
        headers.remove(spelling);
    }
}

/// Appends the peer's address to the addresses that the request already lists, and joins all of them in one field.
pub(crate) fn add_address(headers: &mut HeaderMap, address: IpAddr) {
    remove_other_spellings(headers, &FORWARDED_FOR);
    let own = address.to_canonical().to_string();
    let named = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
    let all: Vec<&[u8]> = named.chain([own.as_bytes()]).collect();
    // Valid values joined by a comma are a valid value.
    if let Ok(all) = HeaderValue::from_bytes(&all.join(&b", "[..])) {
        headers.insert(FORWARDED_FOR, all);
    }
}

/// Gives a request without an id a version 4 UUID.
pub(crate) fn ensure_request_id(headers: &mut HeaderMap) {
    remove_other_spellings(headers, &REQUEST_ID);
    if !headers.contains_key(REQUEST_ID) {
        let [high, low] = [(); 2].map(|()| mix64(IDS.fetch_add(1, Relaxed)));
        if let Ok(id) = HeaderValue::try_from(uuid(high, low)) {
            headers.insert(REQUEST_ID, id);
        }
    }
}

/// The version 4 UUID with these random bits (RFC 9562 5.4).
fn uuid(high: u64, low: u64) -> String {
    let (high, low) = (high & !0xf000 | 0x4000, low & !(0b11 << 62) | 0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_headers_of_anonymous_caller_are_removed() {
        let mut headers = HeaderMap::new();
        headers.append(CALLER, HeaderValue::from_static("spiffe://prod/forged"));
        headers.append(CLIENT_CERTIFICATE, HeaderValue::from_static("URI=spiffe://prod/forged"));
        headers.append("x_fairmesh_caller", HeaderValue::from_static("spiffe://prod/forged"));
        headers.append("x_forwarded-client_cert", HeaderValue::from_static("URI=spiffe://prod/forged"));
        set_identity(&mut headers, None, None);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn peer_address_is_appended_to_forwarded_for_header() {
        let mut headers = HeaderMap::new();
        add_address(&mut headers, "::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.1");
        headers.append(FORWARDED_FOR, HeaderValue::from_static("192.0.2.2"));
        add_address(&mut headers, "2001:db8::1".parse().unwrap());
        let all: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        assert_eq!(all, ["192.0.2.1, 192.0.2.2, 2001:db8::1"]);
    }

    #[test]
    fn misspelt_forwarded_for_and_request_id_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for name in ["x_forwarded_for", "x-forwarded_for", "x_request_id", "x-checksum"] {
            headers.append(name, HeaderValue::from_static("192.0.2.9"));
        }
        headers.append(REQUEST_ID, HeaderValue::from_static("own"));
        add_address(&mut headers, "192.0.2.1".parse().unwrap());
        ensure_request_id(&mut headers);
        assert_eq!(headers.len(), 3, "{headers:?}");
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.1");
        assert_eq!(headers[REQUEST_ID], "own");
    }

    #[test]
    fn request_without_request_id_gets_uuid_and_existing_id_is_kept() {
        assert_eq!(uuid(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid(0, 0), "00000000-0000-4000-8000-000000000000");
        let mut headers = HeaderMap::new();
        ensure_request_id(&mut headers);
        let first = headers[REQUEST_ID].clone();
        ensure_request_id(&mut headers);
        assert_eq!(headers[REQUEST_ID], first);
        headers.clear();
        ensure_request_id(&mut headers);
        assert_ne!(headers[REQUEST_ID], first);
    }
}
