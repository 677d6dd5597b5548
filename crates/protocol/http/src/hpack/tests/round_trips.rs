//! Encoded blocks decode to the same fields.

use http::{HeaderMap, uri::Scheme};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Head {
    limits: Vec<u32>,
    method: &'static str,
    path: String,
    status: u16,
    fields: Vec<(String, String, bool)>,
}

/// Generates headers from few names and values, so that many repeat, mixed with some that rarely do.
fn head() -> impl Strategy<Value = Head> {
    let limit = prop_oneof![0..200_u32, 0..5000_u32];
    let limits = prop_oneof![6 => Just(vec![]), 1 => prop::collection::vec(limit, 1..4)];
    let name = prop_oneof![
        Just("accept".to_owned()),
        Just("cookie".to_owned()),
        Just("content-length".to_owned()),
        "x-[a-e]",
        "[a-z][a-z0-9-]{0,20}",
    ];
    let value = prop_oneof![3 => "[a-d]{0,2}", 1 => "[ -~]{0,60}", 1 => "v{100,1500}"];
    let fields = prop::collection::vec((name, value, prop::bool::weighted(0.1)), 0..12);
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PUT"), Just("OTHER")];
    (limits, method, "/[a-c]{0,3}", 200..210_u16, fields)
        .prop_map(|(limits, method, path, status, fields)| Head { limits, method, path, status, fields })
}

fn map(head: &Head) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value, is_sensitive) in &head.fields {
        let mut value = HeaderValue::from_str(value).unwrap();
        value.set_sensitive(*is_sensitive);
        map.append(HeaderName::try_from(name).unwrap(), value);
    }
    map
}

fn write(head: &Head, map: &HeaderMap, encoder: &mut Encoder) -> Vec<u8> {
    for limit in &head.limits {
        encoder.limit(*limit);
    }
    let mut out = b"before".to_vec();
    let mut block = encoder.block(&mut out);
    block.method(&head.method.parse().unwrap());
    block.scheme("http");
    block.authority("a.b:80");
    block.path(&head.path);
    block.status(StatusCode::from_u16(head.status).unwrap());
    block.headers(map);
    out.split_off("before".len())
}

fn expected(head: &Head, map: &HeaderMap) -> Vec<Field> {
    let mut expected = vec![
        Field::Method(head.method.parse().unwrap()),
        Field::Scheme(Scheme::HTTP),
        field(":authority", "a.b:80"),
        field(":path", &head.path),
        Field::Status(StatusCode::from_u16(head.status).unwrap()),
    ];
    expected.extend(map.iter().map(|(name, value)| Field::Header(name.clone(), value.clone())));
    expected
}

fn sensitive(field: &Field) -> bool {
    matches!(field, Field::Header(name, value) if value.is_sensitive() || name == "cookie")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn hpack_header_blocks_round_trip(heads in prop::collection::vec(head(), 1..50)) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for head in heads {
            let map = map(&head);
            let block = write(&head, &map, &mut encoder);
            let fields = decode(&mut decoder, &block).unwrap();
            let expected = expected(&head, &map);
            prop_assert_eq!(&fields, &expected);
            let kept = std::iter::zip(&fields, &expected).all(|(a, b)| sensitive(a) == sensitive(b));
            prop_assert!(kept);
            prop_assert_eq!(decoder.table().sizes(), (encoder.table().sizes(), true));
        }
    }
}

/// Inserts more entries than there are entry numbers, with a table that is always full.
#[test]
fn hpack_encoder_and_decoder_tables_stay_equal() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let name = HeaderName::from_static("x-name");
    for round in 0..26_000 {
        let values: Vec<String> = (0..8).map(|at| (round / 3 * 8 + at).to_string()).collect();
        let mut out = Vec::new();
        let mut block = encoder.block(&mut out);
        for value in &values {
            block.header(&name, &value.parse().unwrap());
        }
        let fields = decode(&mut decoder, &out).unwrap();
        assert_eq!(fields, values.iter().map(|value| field("x-name", value)).collect::<Vec<_>>());
        assert_eq!(decoder.table().sizes(), (encoder.table().sizes(), true));
        // Each field occurs three times: the second occurrence enters the table.
        assert_eq!(out.len() == values.len(), round % 3 == 2, "{round}");
    }
    assert!(encoder.table().sizes().len() > 90);
}
