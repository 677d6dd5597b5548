//! Decoding the value of a record never panics, the check of writes agrees with the decoder, and a valid value survives
//! decoding and encoding unchanged.

use fairmesh_model::RecordKey;
use fairmesh_wire::records;

const KEYS: [&str; 14] = [
    "/t/shop/services/cart",
    "/t/shop/endpoints/cart/eu/cart-0",
    "/t/shop/policies/cart",
    "/t/shop/moves/cart/5",
    "/g/topology/regions",
    "/g/topology/rtt",
    "/g/topology/hosts",
    "/t/shop/health/cart/eu/cart-0",
    "/t/shop/history/services/cart/00000000000000000042",
    "/t/shop/history/policies/cart/00000000000000000042",
    "/t/shop/tables/cart/eu",
    "/t/shop/workloads/cart",
    "/g/authorization",
    "/g/roles/shop",
];

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Some((chosen, value)) = data.split_first() else { return };
    let text = KEYS[usize::from(*chosen) % KEYS.len()];
    let key = RecordKey::parse(text).expect("the keys above are well formed");
    let checked = records::check(text, value);
    if matches!(key, RecordKey::History(..) | RecordKey::MeshHistory(..)) {
        if let Ok(history) = records::decode_history(value) {
            let encoded = records::encode_history(&history);
            assert_eq!(records::decode_history(&encoded), Ok(history));
        } else {
            assert!(checked.is_err(), "{text} was accepted and cannot be read");
        }
        return;
    }
    let decoded = records::decode(&key, value);
    assert_eq!(checked.is_ok(), decoded.is_ok(), "{text}: {checked:?}, and {decoded:?}");
    if let Ok(record) = decoded {
        let encoded = records::encode(&record);
        assert_eq!(records::decode(&key, &encoded).as_ref(), Ok(&record));
        assert_eq!(records::encode(&record), encoded, "one record has one encoding");
    }
}
