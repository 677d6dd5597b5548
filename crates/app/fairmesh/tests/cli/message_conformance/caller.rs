//! Caller identity that a program behind `--inbound` or `register` receives, whatever the caller claims.

use super::{forms::Forms, messages::curl};

const CLAIMS: [&str; 6] = [
    "-H",
    "x-fairmesh-caller: spiffe://prod/shop/forged",
    "-H",
    "x-forwarded-client-cert: URI=spiffe://prod/shop/forged",
    "-H",
    "x-forwarded-for: 192.0.2.1",
];

/// Headers that the program receives on each path, for a request with false claims.
fn seen(forms: &Forms, with_register: bool) -> Vec<String> {
    let versions = ["--http1.1", "--http2-prior-knowledge"];
    forms
        .forms
        .iter()
        .filter(|form| with_register || form.name.contains("--inbound"))
        .flat_map(|form| {
            versions.map(|version| curl(&form.address, &[&[version], &CLAIMS[..]].concat(), "/"))
        })
        .collect()
}

fn header<'a>(seen: &'a str, name: &str) -> Option<&'a str> {
    seen.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn programs_receive_authenticated_identity_of_caller() {
    for seen in seen(&Forms::mutual_tls(), true) {
        assert!(!seen.contains("forged"), "{seen}");
        let caller = header(&seen, "x-fairmesh-caller").unwrap();
        let certificate = header(&seen, "x-forwarded-client-cert").unwrap();
        let [by, hash, uri] = certificate.split(';').collect::<Vec<_>>()[..] else { panic!("{seen}") };
        assert!(by.starts_with("by=spiffe://prod/"), "{seen}");
        let digits = hash.strip_prefix("hash=").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{seen}");
        assert!(caller.starts_with("spiffe://prod/") && uri == format!("uri={caller}"), "{seen}");
        assert!(seen.contains("x-forwarded-for: 192.0.2.1, 127.0.0.1\r\n"), "{seen}");
        assert!(seen.contains("x-request-id: "), "{seen}");
    }
}

#[test]
fn inbound_proxy_sends_no_identity_header_for_plaintext_caller() {
    // Without a trust domain, callers reach a program behind `register` directly.
    for seen in seen(&Forms::plain(), false) {
        for header in ["forged", "x-fairmesh-caller", "x-forwarded-client-cert"] {
            assert!(!seen.contains(header), "{seen}");
        }
        assert!(seen.contains("x-forwarded-for: 192.0.2.1, 127.0.0.1\r\n"), "{seen}");
    }
}
