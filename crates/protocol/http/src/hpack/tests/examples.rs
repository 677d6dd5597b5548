//! The examples of RFC 7541, appendix C.

use super::*;

#[test]
fn hpack_integers_match_rfc_7541_c_1() {
    for (first, bits, value, bytes) in
        [(0, 5, 10, "0a"), (0, 5, 1337, "1f9a0a"), (0, 7, 42, "2a"), (0x80, 7, 127, "ff00")]
    {
        let mut out = Vec::new();
        primitives::integer(&mut out, first, bits, value);
        assert_eq!(out, hex(bytes));
        let mut input = primitives::Input(&out);
        assert_eq!((input.integer(bits), input.0), (Ok(value), &[][..]));
    }
}

#[test]
fn hpack_fields_match_rfc_7541_c_2() {
    let mut decoder = Decoder::default();
    let literal = hex("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572");
    assert_eq!(decode(&mut decoder, &literal), Ok(fields(&[("custom-key", "custom-header")])));
    assert_eq!(decoder.table().sizes(), (vec![55], true));

    let mut decoder = Decoder::default();
    let passing = hex("040c 2f73 616d 706c 652f 7061 7468");
    assert_eq!(decode(&mut decoder, &passing), Ok(fields(&[(":path", "/sample/path")])));
    let never = hex("1008 7061 7373 776f 7264 0673 6563 7265 74");
    let secret = decode(&mut decoder, &never).unwrap();
    assert_eq!(secret, fields(&[("password", "secret")]));
    assert!(matches!(&secret[..], [Field::Header(_, value)] if value.is_sensitive()));
    assert_eq!(decode(&mut decoder, &hex("82")), Ok(vec![Field::Method(Method::GET)]));
    assert_eq!(decoder.table().sizes(), (vec![], true));
}

/// Blocks of one connection, each with its fields and with the sizes of the table's entries after it.
type Example<'a> = [(&'a str, &'a [(&'a str, &'a str)], &'a [usize])];

fn check(size: usize, example: &Example<'_>) {
    let mut decoder = Decoder::new(size);
    for (block, expected, sizes) in example {
        assert_eq!(decode(&mut decoder, &hex(block)), Ok(fields(expected)));
        assert_eq!(decoder.table().sizes(), (sizes.to_vec(), true));
    }
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

const COOKIE: &str = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
const ANSWERS: [&[(&str, &str)]; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", COOKIE),
    ],
];

/// Sizes of the table's entries after each block of C.3 and C.4.
const REQUEST_SIZES: [&[usize]; 3] = [&[57], &[53, 57], &[54, 53, 57]];
const ANSWER_SIZES: [&[usize]; 3] = [&[63, 65, 52, 42], &[42, 63, 65, 52], &[98, 52, 65]];

fn check_all(size: usize, blocks: [&str; 3], fields: [&[(&str, &str)]; 3], sizes: [&[usize]; 3]) {
    let example: Vec<_> =
        std::iter::zip(blocks, std::iter::zip(fields, sizes)).map(|(a, (b, c))| (a, b, c)).collect();
    check(size, &example);
}

#[test]
fn hpack_requests_match_rfc_7541_c_3_and_c_4() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    check_all(4096, plain, REQUESTS, REQUEST_SIZES);
    check_all(4096, coded, REQUESTS, REQUEST_SIZES);
}

#[test]
fn hpack_responses_match_rfc_7541_c_5_and_c_6() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
         54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
         5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
         77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
         9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    check_all(256, plain, ANSWERS, ANSWER_SIZES);
    check_all(256, coded, ANSWERS, ANSWER_SIZES);
}

#[test]
fn static_table_entries_are_found_by_name_and_value() {
    let name_of = |index: usize| match &static_table::get(index - 1).unwrap().field {
        Field::Header(name, _) => name.clone(),
        other => panic!("{other:?}"),
    };
    for index in 15..=static_table::COUNT {
        assert_eq!(static_table::header(&name_of(index)), index);
    }
    assert_eq!(name_of(32), "cookie");
    assert_eq!(name_of(61), "www-authenticate");
    assert_eq!(static_table::header(&HeaderName::from_static("custom-key")), 0);
    let field_of = |index: Option<usize>| static_table::get(index.unwrap() - 1).unwrap().field.clone();
    for method in [Method::GET, Method::POST] {
        assert_eq!(field_of(static_table::method(&method)), Field::Method(method));
    }
    for path in ["/", "/index.html"] {
        assert_eq!(field_of(static_table::path(path)), field(":path", path));
    }
    for scheme in ["http", "https"] {
        assert_eq!(field_of(static_table::scheme(scheme)), field(":scheme", scheme));
    }
    for status in (100..1000).map(|code| StatusCode::from_u16(code).unwrap()) {
        let index = static_table::status(status);
        assert!(index.is_none() || field_of(index) == Field::Status(status));
    }
}

#[test]
fn static_table_entries_are_found_by_pseudo_header_name() {
    use static_table::{AUTHORITY, METHOD, PATH, SCHEME, STATUS};
    for (index, name, value) in [
        (AUTHORITY, ":authority", "a.b:1"),
        (METHOD, ":method", "PUT"),
        (PATH, ":path", "/a?b"),
        (SCHEME, ":scheme", "grpc"),
        (STATUS, ":status", "503"),
    ] {
        let mut block = vec![index as u8];
        primitives::string(&mut block, value.as_bytes());
        assert_eq!(decode(&mut Decoder::default(), &block), Ok(vec![field(name, value)]));
    }
}
