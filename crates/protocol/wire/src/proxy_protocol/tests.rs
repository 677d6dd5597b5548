use proptest::prelude::*;

use super::*;

fn addresses(source: &str, destination: &str) -> Addresses {
    Addresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

/// Parses as a connection does, never reading beyond the header.
fn read_stepwise(bytes: &[u8]) -> Result<Option<Header>, InvalidHeader> {
    let mut have = 0;
    loop {
        match read(&bytes[..have])? {
            Header::Incomplete(more) => {
                assert!(more > 0);
                if have + more > bytes.len() {
                    return Ok(None);
                }
                have += more;
            }
            whole @ Header::Complete { length, .. } => {
                assert_eq!(length, have, "nothing of what follows was read");
                return Ok(Some(whole));
            }
        }
    }
}

fn whole(bytes: &[u8]) -> Option<Addresses> {
    match read_stepwise(bytes) {
        Ok(Some(Header::Complete { length, addresses, .. })) => {
            assert_eq!(length, bytes.len());
            addresses
        }
        other => panic!("{other:?} of {bytes:?}"),
    }
}

fn refused(bytes: &[u8]) -> String {
    read_stepwise(bytes).map(|head| format!("{head:?}")).unwrap_err().to_string()
}

/// A version 2 header with this command, family and rest.
fn binary(command: u8, kind: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&binary::SIGNATURE[..], &[command, kind], &length, rest].concat()
}

#[test]
fn proxy_protocol_v1_headers_are_parsed() {
    let four = whole(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n");
    assert_eq!(four, Some(addresses("192.0.2.1:56324", "198.51.100.2:443")));
    let six = whole(b"PROXY TCP6 2001:db8::1 :: 0 65535\r\n");
    assert_eq!(six, Some(addresses("[2001:db8::1]:0", "[::]:65535")));
    for unknown in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN whatever is said\r\n"] {
        assert_eq!(whole(unknown), None);
    }
}

#[test]
fn ambiguous_proxy_protocol_v1_headers_are_refused() {
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
    for line in [
        "GET / HTTP/1.1\r\n",
        "proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\nGET",
        "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n           ",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rX\r\n",
        &long,
    ] {
        let problem = refused(line.as_bytes());
        assert!(problem.contains("PROXY protocol"), "{line:?}: {problem}");
    }
}

#[test]
fn proxy_protocol_v2_headers_are_parsed() {
    let block = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 1, 0xbb];
    let expected = Some(addresses("192.0.2.1:56324", "198.51.100.2:443"));
    assert_eq!(whole(&binary(0x21, 0x11, &block)), expected);
    let with_facts = [&block[..], &[4, 0, 3, 1, 2, 3], &[0xea, 0, 0]].concat();
    assert_eq!(whole(&binary(0x21, 0x11, &with_facts)), expected);
    for nothing in [binary(0x20, 0x11, b"x"), binary(0x21, 0, b"xy"), binary(0x21, 0x31, &[b'/'; 216])] {
        assert_eq!(whole(&nothing), None);
    }
}

#[test]
fn proxy_protocol_connection_id_is_read_as_written() {
    let (four, id) = (addresses("192.0.2.1:56324", "198.51.100.2:443"), ConnectionId(u128::MAX / 3));
    let written = write_with_id(four, id);
    let Ok(Some(Header::Complete { length, addresses, connection_id })) = read_stepwise(&written) else {
        panic!("{written:?}");
    };
    assert_eq!((length, addresses, connection_id), (written.len(), Some(four), Some(id)));
    assert_eq!(id.to_string(), "5".repeat(32));
    let twice = [&written[16..], &written[28..]].concat();
    assert!(refused(&binary(0x21, 0x11, &twice)).contains("two ids"));
    let short = [&written[16..28], &[5, 0, 1, 9]].concat();
    assert!(matches!(
        read_stepwise(&binary(0x21, 0x11, &short)),
        Ok(Some(Header::Complete { connection_id: None, .. }))
    ));
}

#[test]
fn invalid_proxy_protocol_v2_headers_are_refused() {
    let block = [0; 12];
    for wrong in [
        binary(0x11, 0x11, &block),
        binary(0x22, 0x11, &block),
        binary(0x21, 0x12, &block),
        binary(0x21, 0x41, &block),
        binary(0x21, 0x11, &block[1..]),
        binary(0x21, 0x21, &block),
        binary(0x21, 0x31, &[0; 215]),
        binary(0x21, 0x11, &[&block[..], &[4, 0, 3, 1, 2]].concat()),
        binary(0x21, 0x11, &[&block[..], &[4, 0]].concat()),
        binary(0x21, 0x11, &[0; 4097]),
        b"\r\n\r\n\0\r\nQUIT\r    ".to_vec(),
    ] {
        assert!(!refused(&wrong).is_empty());
    }
}

#[test]
fn proxy_protocol_writes_mixed_address_families_as_ipv6() {
    let mixed = addresses("192.0.2.1:1", "[::1]:2");
    for version in [Version::V1, Version::V2] {
        assert_eq!(whole(&write(version, mixed)), Some(addresses("[::ffff:192.0.2.1]:1", "[::1]:2")));
    }
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let four = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    let six = any::<([u16; 8], u16)>().prop_map(SocketAddr::from);
    prop_oneof![four, six]
}

proptest! {
    #[test]
    fn written_proxy_protocol_headers_are_parsed(source in address(), destination in address(), rest: Vec<u8>, second: bool) {
        let addresses = Addresses { source, destination };
        let head = write(if second { Version::V2 } else { Version::V1 }, addresses);
        let addresses = Some(addresses.same_family());
        let expected = Header::Complete { length: head.len(), addresses, connection_id: None };
        let sent = [&head[..], &rest].concat();
        prop_assert_eq!(read(&sent), Ok(expected));
        prop_assert_eq!(read_stepwise(&sent), Ok(Some(expected)));
    }

    #[test]
    fn proxy_protocol_header_parses_equally_at_once_and_in_pieces(beginning in 0..3_usize, mut bytes: Vec<u8>) {
        let known = [&b""[..], b"PROXY TCP4 1.2.3.4 1.2.3.4 ", &[&binary::SIGNATURE[..], &[0x21, 0x11, 0]].concat()]
            [beginning].to_vec();
        bytes.splice(0..0, known);
        match (read(&bytes), read_stepwise(&bytes)) {
            (Ok(Header::Incomplete(_)), Ok(None)) => {}
            (Ok(at_once), Ok(Some(stepwise))) => prop_assert_eq!(at_once, stepwise),
            // The bytes may end before the error is detected.
            (Err(_), Err(_) | Ok(None)) => {}
            (at_once, stepwise) => prop_assert!(false, "{at_once:?}, {stepwise:?}"),
        }
    }
}
