//! The encoder adds the right fields to its table.

use std::fmt::Write as _;

use http::{HeaderMap, header as name};

use super::*;

/// Encodes headers as one block each, and checks that the decoder returns the same header.
struct Both {
    encoder: Encoder,
    decoder: Decoder,
}

impl Both {
    fn new() -> Self {
        Self { encoder: Encoder::default(), decoder: Decoder::default() }
    }

    fn block(&mut self, write: impl FnOnce(&mut Block<'_>)) -> (Vec<u8>, Vec<Field>) {
        let mut out = Vec::new();
        write(&mut self.encoder.block(&mut out));
        let fields = decode(&mut self.decoder, &out).unwrap();
        assert_eq!(self.decoder.table().sizes(), (self.encoder.table().sizes(), true));
        (out, fields)
    }

    /// Returns the length of an encoded header.
    fn header(&mut self, (name, value): (HeaderName, HeaderValue)) -> usize {
        let (out, fields) = self.block(|block| block.header(&name, &value));
        assert_eq!(fields, [Field::Header(name, value)]);
        out.len()
    }
}

#[test]
fn repeated_header_fields_are_indexed() {
    let mut both = Both::new();
    let whole = 1 + 1 + "x-version".len() + 1 + "17".len();
    let lengths = [(); 4].map(|()| both.header(header("x-version", "17")));
    assert_eq!(lengths, [whole, whole, 1, 1]);
    // The name of this header is in the dynamic table by now; the names below are in the static one.
    assert_eq!(both.header(header("x-version", "18")), 2 + 1 + 2);
    assert_eq!(both.header(header("user-agent", "18")), 2 + 1 + 2);
    let lengths = [(); 3].map(|()| both.block(|block| block.path("/a/b")).0.len());
    assert_eq!(lengths, [1 + 1 + 4, 1 + 1 + 4, 1]);
    let lengths = [(); 3].map(|()| both.block(|block| block.authority("a:80")).0.len());
    assert_eq!(lengths, [1 + 1 + 4, 1 + 1 + 4, 1]);
}

#[test]
fn static_table_fields_are_sent_as_index_on_first_use() {
    let mut both = Both::new();
    let (out, fields) = both.block(|block| {
        block.method(&Method::GET);
        block.scheme("https");
        block.authority("a");
        block.path("/");
        block.status(StatusCode::NOT_FOUND);
        block.status(StatusCode::CREATED);
        block.method(&Method::PUT);
        block.scheme("grpc");
    });
    assert_eq!(out, hex("82 87 0101 61 84 8d 0803 323031 0203 505554 0604 67727063"));
    let expected = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
        (":status", "404"),
        (":status", "201"),
        (":method", "PUT"),
        (":scheme", "grpc"),
    ];
    assert_eq!(fields, super::fields(&expected));
}

#[test]
fn unique_header_fields_do_not_evict_repeated_ones() {
    let mut both = Both::new();
    let repeated =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].map(|value| header("x-repeated", value));
    let mut largest = 0;
    for round in 0..5000 {
        let mut map = HeaderMap::new();
        for (name, value) in &repeated {
            map.append(name, value.clone());
        }
        for unique in ["traceparent", "x-request-id", "date", "content-length"] {
            map.append(unique, format!("{round:032}").parse().unwrap());
        }
        let (out, fields) = both.block(|block| block.headers(&map));
        assert_eq!(fields.len(), 14);
        if round >= 3 {
            largest = largest.max(out.len());
        }
    }
    // Repeated fields take one index each; unique values take the index of their name and a literal.
    assert_eq!(largest, 10 + 4 * (2 + 1 + 32));
    assert_eq!(both.encoder.table().sizes().len(), 10 + 2);
}

#[test]
fn secret_headers_are_never_indexed() {
    let mut both = Both::new();
    let mut key = HeaderValue::from_static("0123456789");
    key.set_sensitive(true);
    let secret = |name: HeaderName| (name, HeaderValue::from_static("0123456789"));
    for (name, value) in [
        (HeaderName::from_static("x-key"), key),
        secret(name::AUTHORIZATION),
        secret(name::PROXY_AUTHORIZATION),
        secret(name::COOKIE),
        secret(name::SET_COOKIE),
    ] {
        for _ in 0..4 {
            let (out, fields) = both.block(|block| block.header(&name, &value));
            assert_eq!(out[0] & 0xf0, 0x10);
            let Some(Field::Header(_, decoded)) = fields.first() else { panic!("{fields:?}") };
            assert!(decoded == value && decoded.is_sensitive());
        }
    }
    let lengths = [(); 4].map(|()| both.header(header("content-length", "17")));
    assert_eq!(lengths, [2 + 1 + 2; 4]);
    assert_eq!(both.decoder.table().sizes(), (vec![], true));
    // Names are not secret.
    for _ in 0..2 {
        both.header(header("x-key", "other"));
    }
    let (out, _) = both.block(|block| {
        let mut value = HeaderValue::from_static("v");
        value.set_sensitive(true);
        block.header(&HeaderName::from_static("x-key"), &value);
    });
    assert_eq!(out, hex("1f2f 0176"));
}

#[test]
fn large_header_fields_are_not_indexed() {
    let mut both = Both::new();
    for (length, is_indexed) in [(1024 - 32 - 4, true), (1024 - 32 - 3, false)] {
        let value = HeaderValue::try_from("v".repeat(length)).unwrap();
        let lengths = [(); 3].map(|()| both.header((HeaderName::from_static("name"), value.clone())));
        assert_eq!(lengths[2] < 10, is_indexed);
    }
}

#[test]
fn hpack_table_size_changes_are_announced_and_applied() {
    let mut both = Both::new();
    let announced = |both: &mut Both, limits: &[u32]| {
        for limit in limits {
            both.encoder.limit(*limit);
        }
        both.block(|_| {}).0
    };
    for _ in 0..3 {
        both.header(header("name", "value"));
    }
    assert_eq!(announced(&mut both, &[]), hex(""));
    assert_eq!(announced(&mut both, &[4096]), hex(""));
    assert_eq!(announced(&mut both, &[u32::MAX]), hex(""));
    assert_eq!(announced(&mut both, &[5000, 4097]), hex(""));
    assert_eq!(both.header(header("name", "value")), 1);
    assert_eq!(announced(&mut both, &[40, 10, 4096]), hex("2a 3fe11f"));
    assert!(both.encoder.table().sizes().is_empty());
    assert_eq!(announced(&mut both, &[100, 50, 60]), hex("3f13 3f1d"));
    assert_eq!(announced(&mut both, &[0]), hex("20"));
    let lengths = [(); 4].map(|()| both.header(header("name", "value")));
    assert_eq!(lengths, [1 + 1 + 4 + 1 + 5; 4]);
    assert_eq!(announced(&mut both, &[4096, 0]), hex(""));
    assert_eq!(announced(&mut both, &[4096]), hex("3fe11f"));
    assert_eq!([(); 2].map(|()| both.header(header("name", "value")))[1], 1);
}

#[test]
fn many_values_of_one_header_name_are_all_found_in_table() {
    // The random key of the hash determines which fields share a set of slots. With some keys, a set overflows.
    let found = (0..8).any(|_| lengths_of_many_values() == vec![2; 30 * 37]);
    assert!(found, "with none of eight keys are all fields found");
}

/// Returns the bytes of each header block for 30 paths and values of one name, cycled through after all have been seen.
fn lengths_of_many_values() -> Vec<usize> {
    let mut both = Both::new();
    let mut lengths = Vec::new();
    for round in 0..40 {
        for value in 0..30 {
            let mut text = String::new();
            write!(text, "/path/{value}").unwrap();
            let path = both.block(|block| block.path(&text)).0.len();
            let name = HeaderName::from_static("x-name");
            let length = path + both.header((name, text.parse().unwrap()));
            if round > 2 {
                lengths.push(length);
            }
        }
    }
    lengths
}
