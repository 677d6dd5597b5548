//! Malformed blocks are rejected.

use proptest::prelude::*;

use super::*;

fn why(block: &[u8]) -> &'static str {
    decode(&mut Decoder::default(), block).unwrap_err().0
}

#[test]
fn hpack_indices_outside_table_are_refused() {
    assert_eq!(why(&hex("80")), "index 0");
    assert_eq!(why(&hex("be")), "an index beyond the tables");
    assert_eq!(why(&hex("7f00 00")), "an index beyond the tables");
    assert_eq!(why(&hex("0f7f 00")), "an index beyond the tables");
    assert_eq!(why(&hex("ff80 8080 8001")), "an index beyond the tables");
}

#[test]
fn oversized_hpack_integers_are_refused() {
    assert_eq!(why(&hex("ff80 8080 8010")), "an integer exceeds 32 bits");
    assert_eq!(why(&hex("ffff ffff ff7f")), "an integer exceeds 32 bits");
    assert_eq!(why(&hex("ff80 8080 8080 00")), "an integer has too many bytes");
    assert_eq!(why(&hex("00 01 61 ffff ffff ffff 7f")), "an integer has too many bytes");
    let (mut out, most) = (Vec::new(), u32::MAX as usize);
    primitives::integer(&mut out, 0, 4, most);
    assert_eq!(primitives::Input(&out).integer(4), Ok(most));
}

#[test]
fn truncated_hpack_header_block_is_refused() {
    assert_eq!(decode(&mut Decoder::default(), b""), Ok(vec![]));
    for short in ["ff", "ff80", "40", "4001", "400161", "0161"] {
        assert!(why(&hex(short)).starts_with("the block ends within a"), "{short}");
    }
    // A length for which no memory must be allocated.
    assert_eq!(why(&hex("00 ff80 ffff ff0e")), "the block ends within a string");
}

#[test]
fn invalid_huffman_padding_is_refused() {
    // "0" has the 5-bit code 00000, and "a" the 5-bit code 00011.
    for good in ["81 07", "82 001f", "82 1fff"] {
        let block = hex(&format!("0f00 {good}"));
        let fits = decode(&mut Decoder::default(), &block).is_ok();
        assert_eq!(fits, good != "82 1fff", "{good}");
    }
    assert_eq!(why(&hex("0f00 82 07ff")), "the padding of a string exceeds 7 bits");
    assert_eq!(why(&hex("0f00 81 ff")), "the padding of a string exceeds 7 bits");
    assert_eq!(why(&hex("0f00 81 06")), "the padding of a string is not all ones");
    assert_eq!(why(&hex("0f00 81 00")), "the padding of a string is not all ones");
    assert_eq!(why(&hex("0f00 84 ffff ffff")), "a string contains EOS");
    assert_eq!(why(&hex("0f00 85 07ff ffff ff")), "a string contains EOS");
    assert_eq!(decode(&mut Decoder::default(), &hex("0f00 80")), Ok(fields(&[("accept-charset", "")])));
}

#[test]
fn hpack_size_update_after_field_or_beyond_limit_is_refused() {
    let mut decoder = Decoder::new(256);
    assert_eq!(decode(&mut decoder, &hex("20 3f e1 01 82")), Ok(vec![Field::Method(Method::GET)]));
    assert_eq!(decode(&mut decoder, &hex("20")), Ok(vec![]));
    let too_large = "a table size update exceeds SETTINGS_HEADER_TABLE_SIZE";
    assert_eq!(decode(&mut Decoder::new(256), &hex("3f e2 01")), Err(DecodeError(too_large)));
    let too_often = "a table size update within a block, or a third one";
    assert_eq!(why(&hex("20 21 22")), too_often);
    assert_eq!(why(&hex("82 20")), too_often);
}

#[test]
fn larger_hpack_table_is_used_after_its_size_update() {
    let mut decoder = Decoder::new(1 << 20);
    let entry = literal(b"name", &[b'a'; 4000]);
    for (announced, count) in [(&[][..], 1), (&hex("3fe1ff03"), 4)] {
        let block = [announced, &entry, &entry, &entry].concat();
        decode(&mut decoder, &block).unwrap();
        assert_eq!(decoder.table().sizes(), (vec![4036; count], true));
    }
}

#[test]
fn hpack_entry_larger_than_table_empties_table() {
    let mut decoder = Decoder::new(100);
    decode(&mut decoder, &[literal(b"a", b"1"), literal(b"b", b"2")].concat()).unwrap();
    assert_eq!(decoder.table().sizes(), (vec![34, 34], true));
    let large = decode(&mut decoder, &literal(b"c", &[b'c'; 68])).unwrap();
    assert_eq!(large[0].size(), 101);
    assert_eq!(decoder.table().sizes(), (vec![], true));
    // The name comes from an entry that this insertion evicts (RFC 7541 4.4).
    decode(&mut decoder, &literal(b"name", b"1")).unwrap();
    let mut block = hex("7e");
    primitives::string(&mut block, &[b'v'; 60]);
    assert_eq!(decode(&mut decoder, &block), Ok(vec![field("name", &"v".repeat(60))]));
    assert_eq!(decoder.table().sizes(), (vec![96], true));
}

#[test]
fn invalid_header_fields_fail_only_their_message() {
    let mut decoder = Decoder::default();
    for (name, value, expected) in [
        ("Name", "value", "a header name is not in lower case"),
        ("", "value", "an invalid header name"),
        ("na me", "value", "an invalid header name"),
        (":other", "value", "an unknown pseudo-header"),
        (
            "name",
            "a
        b",
            "an invalid header value",
        ),
        (":path", "", "an empty path"),
        (":path", "a", "a path that does not begin with a slash"),
        (":path", "?a", "a path that does not begin with a slash"),
        (":path", "/a#b", "a path with spaces, control characters or a fragment"),
        (":path", "*a", "a path that does not begin with a slash"),
        (":path", "/a b", "a path with spaces, control characters or a fragment"),
        (":path", "/a\u{7f}b", "a path with spaces, control characters or a fragment"),
        (":method", "", "an invalid :method"),
        (":scheme", "a b", "an invalid :scheme"),
        (":authority", "", "an invalid :authority"),
        (":status", "20", "an invalid :status"),
        (":protocol", "web socket", "an invalid :protocol"),
    ] {
        let size = name.len() + value.len() + 32;
        let malformed = Ok(vec![Field::Malformed(size, expected)]);
        assert_eq!(decode(&mut decoder, &literal(name.as_bytes(), value.as_bytes())), malformed);
        // Malformed again when it is repeated by index.
        assert_eq!(decode(&mut decoder, &hex("be")), malformed);
    }
    assert_eq!(decode(&mut decoder, &hex("81")), Ok(vec![Field::Malformed(42, "an invalid :authority")]));
}

#[test]
fn name_of_malformed_header_field_can_be_referenced() {
    let mut decoder = Decoder::default();
    let mut refer = hex("7e");
    primitives::string(&mut refer, b"/good");
    decode(&mut decoder, &literal(b":path", b"bad")).unwrap();
    assert_eq!(decode(&mut decoder, &refer), Ok(fields(&[(":path", "/good")])));
    decode(&mut decoder, &literal(b"name", b"b\0d")).unwrap();
    assert_eq!(decode(&mut decoder, &refer), Ok(fields(&[("name", "/good")])));
    decode(&mut decoder, &literal(b"NAME", b"bad")).unwrap();
    let expected = Field::Malformed(4 + 5 + 32, "a header name is not in lower case");
    assert_eq!(decode(&mut decoder, &refer), Ok(vec![expected]));
    assert_eq!(decode(&mut decoder, &literal(b":protocol", b"websocket")).unwrap()[0].size(), 9 + 9 + 32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_bytes_are_decoded_or_rejected(blocks in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..200), 1..8,
    )) {
        let mut decoder = Decoder::new(300);
        for block in blocks {
            let mut sizes = 0;
            let _ = decoder.decode(&block, |field| sizes += field.size());
            prop_assert!(decoder.table().sizes().1);
            prop_assert!(sizes <= block.len() * 300 * 2);
        }
    }

    /// Mostly complete fields, so that the table fills and most of what follows is valid.
    #[test]
    fn arbitrary_hpack_fields_are_decoded_or_rejected(parts in prop::collection::vec(
        (any::<u8>(), "[ -~]{0,12}", "\\PC{0,40}", any::<bool>()), 1..60,
    )) {
        let mut decoder = Decoder::new(400);
        for (first, name, value, is_whole) in parts {
            let mut block = vec![first];
            if is_whole {
                block = literal(name.as_bytes(), value.as_bytes());
            } else {
                primitives::string(&mut block, value.as_bytes());
            }
            let _ = decode(&mut decoder, &block);
            prop_assert!(decoder.table().sizes().1);
        }
    }

    #[test]
    fn huffman_codes_round_trip(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let coded = huffman::encode(&text);
        let mut out = Vec::new();
        prop_assert_eq!(huffman::decode(&coded, &mut out), Ok(()));
        prop_assert!(out.len() <= coded.len() * 8 / 5);
        prop_assert_eq!(out, text);
    }
}
