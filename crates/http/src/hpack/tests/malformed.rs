//! What must be refused, and how.

use proptest::prelude::*;

use super::*;

fn why(block: &[u8]) -> &'static str {
    decode(&mut Decoder::default(), block).unwrap_err().0
}

#[test]
fn indices_lie_in_the_table() {
    assert_eq!(why(&hex("80")), "an index is 0");
    assert_eq!(why(&hex("be")), "an index is beyond the table");
    assert_eq!(why(&hex("7f00 00")), "an index is beyond the table");
    assert_eq!(why(&hex("0f7f 00")), "an index is beyond the table");
    assert_eq!(why(&hex("ff80 8080 8001")), "an index is beyond the table");
}

#[test]
fn integers_are_bounded() {
    assert_eq!(why(&hex("ff80 8080 8010")), "an integer is too large");
    assert_eq!(why(&hex("ffff ffff ff7f")), "an integer is too large");
    assert_eq!(why(&hex("ff80 8080 8080 00")), "an integer is too long");
    assert_eq!(why(&hex("00 01 61 ffff ffff ffff 7f")), "an integer is too long");
    let (mut out, most) = (Vec::new(), u32::MAX as usize);
    primitives::integer(&mut out, 0, 4, most);
    assert_eq!(primitives::Input(&out).integer(4), Ok(most));
}

#[test]
fn blocks_end_with_a_field() {
    assert_eq!(decode(&mut Decoder::default(), b""), Ok(vec![]));
    for short in ["ff", "ff80", "40", "4001", "400161", "0161"] {
        assert!(why(&hex(short)).starts_with("it ends within a"), "{short}");
    }
    // A length that no memory may be taken for.
    assert_eq!(why(&hex("00 ff80 ffff ff0e")), "it ends within a string");
}

#[test]
fn strings_are_padded_by_few_ones() {
    // "0" takes 5 bits, 00000, and "a" as many, 00011.
    for good in ["81 07", "82 001f", "82 1fff"] {
        let block = hex(&format!("0f00 {good}"));
        let fits = decode(&mut Decoder::default(), &block).is_ok();
        assert_eq!(fits, good != "82 1fff", "{good}");
    }
    assert_eq!(why(&hex("0f00 82 07ff")), "a string is padded by more than 7 bits");
    assert_eq!(why(&hex("0f00 81 ff")), "a string is padded by more than 7 bits");
    assert_eq!(why(&hex("0f00 81 06")), "a string is padded by other bits than ones");
    assert_eq!(why(&hex("0f00 81 00")), "a string is padded by other bits than ones");
    assert_eq!(why(&hex("0f00 84 ffff ffff")), "a string holds the symbol that ends it");
    assert_eq!(why(&hex("0f00 85 07ff ffff ff")), "a string holds the symbol that ends it");
    assert_eq!(decode(&mut Decoder::default(), &hex("0f00 80")), Ok(fields(&[("accept-charset", "")])));
}

#[test]
fn the_table_is_resized_first_and_within_limits() {
    let mut decoder = Decoder::new(256);
    assert_eq!(decode(&mut decoder, &hex("20 3f e1 01 82")), Ok(vec![Field::Method(Method::GET)]));
    assert_eq!(decode(&mut decoder, &hex("20")), Ok(vec![]));
    let too_large = "the table would be larger than was agreed on";
    assert_eq!(decode(&mut Decoder::new(256), &hex("3f e2 01")), Err(Broken(too_large)));
    let too_often = "the size of the table is changed too often, or too late";
    assert_eq!(why(&hex("20 21 22")), too_often);
    assert_eq!(why(&hex("82 20")), too_often);
}

#[test]
fn a_larger_table_is_used_once_it_is_announced() {
    let mut decoder = Decoder::new(1 << 20);
    let entry = literal(b"name", &[b'a'; 4000]);
    for (announced, count) in [(&[][..], 1), (&hex("3fe1ff03"), 4)] {
        let block = [announced, &entry, &entry, &entry].concat();
        decode(&mut decoder, &block).unwrap();
        assert_eq!(decoder.table().sizes(), (vec![4036; count], true));
    }
}

#[test]
fn an_entry_that_is_too_large_empties_the_table() {
    let mut decoder = Decoder::new(100);
    decode(&mut decoder, &[literal(b"a", b"1"), literal(b"b", b"2")].concat()).unwrap();
    assert_eq!(decoder.table().sizes(), (vec![34, 34], true));
    let large = decode(&mut decoder, &literal(b"c", &[b'c'; 68])).unwrap();
    assert_eq!(large[0].size(), 101);
    assert_eq!(decoder.table().sizes(), (vec![], true));
    // Its name comes from an entry that it pushes out (RFC 7541 4.4).
    decode(&mut decoder, &literal(b"name", b"1")).unwrap();
    let mut block = hex("7e");
    primitives::string(&mut block, &[b'v'; 60]);
    assert_eq!(decode(&mut decoder, &block), Ok(vec![field("name", &"v".repeat(60))]));
    assert_eq!(decoder.table().sizes(), (vec![96], true));
}

#[test]
fn what_is_no_http_only_loses_its_message() {
    let mut decoder = Decoder::default();
    for (name, value, expected) in [
        ("Name", "value", "a name is not in lower case"),
        ("", "value", "a name is not made of what names are"),
        ("na me", "value", "a name is not made of what names are"),
        (":other", "value", "an unknown pseudo-header"),
        ("name", "a\nb", "a value is not made of what values are"),
        (":path", "", "a path is empty"),
        (":path", "a", "a path does not begin with a slash"),
        (":path", "?a", "a path does not begin with a slash"),
        (":path", "/a#b", "a path has blanks, control characters or a fragment"),
        (":path", "*a", "a path does not begin with a slash"),
        (":path", "/a b", "a path has blanks, control characters or a fragment"),
        (":path", "/a\u{7f}b", "a path has blanks, control characters or a fragment"),
        (":method", "", "a method is none"),
        (":scheme", "a b", "a scheme is none"),
        (":authority", "", "an authority is none"),
        (":status", "20", "a status is none"),
        (":protocol", "web socket", "a protocol is none"),
    ] {
        let size = name.len() + value.len() + 32;
        let malformed = Ok(vec![Field::Malformed(size, expected)]);
        assert_eq!(decode(&mut decoder, &literal(name.as_bytes(), value.as_bytes())), malformed);
        // And so it does where it is repeated.
        assert_eq!(decode(&mut decoder, &hex("be")), malformed);
    }
    assert_eq!(decode(&mut decoder, &hex("81")), Ok(vec![Field::Malformed(42, "an authority is none")]));
}

#[test]
fn a_malformed_field_still_has_a_name() {
    let mut decoder = Decoder::default();
    let mut refer = hex("7e");
    primitives::string(&mut refer, b"/good");
    decode(&mut decoder, &literal(b":path", b"bad")).unwrap();
    assert_eq!(decode(&mut decoder, &refer), Ok(fields(&[(":path", "/good")])));
    decode(&mut decoder, &literal(b"name", b"b\0d")).unwrap();
    assert_eq!(decode(&mut decoder, &refer), Ok(fields(&[("name", "/good")])));
    decode(&mut decoder, &literal(b"NAME", b"bad")).unwrap();
    let expected = Field::Malformed(4 + 5 + 32, "a name is not in lower case");
    assert_eq!(decode(&mut decoder, &refer), Ok(vec![expected]));
    assert_eq!(decode(&mut decoder, &literal(b":protocol", b"websocket")).unwrap()[0].size(), 9 + 9 + 32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_bytes_are_decoded_or_refused(blocks in prop::collection::vec(
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

    /// Mostly whole fields, so that the table fills and most of what follows makes sense.
    #[test]
    fn any_fields_are_decoded_or_refused(parts in prop::collection::vec(
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
    fn any_huffman_code_is_decoded_as_it_was_made(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let coded = huffman::encode(&text);
        let mut out = Vec::new();
        prop_assert_eq!(huffman::decode(&coded, &mut out), Ok(()));
        prop_assert!(out.len() <= coded.len() * 8 / 5);
        prop_assert_eq!(out, text);
    }
}
