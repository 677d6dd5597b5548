//! Decoding the value of a record never panics, the check of writes agrees with the decoder, and a valid value survives
//! decoding and encoding unchanged.

use fairmesh_model::RecordKey;
use fairmesh_wire::record_encoding;

/// An example of each field of keys.
macro_rules! example {
    (region) => {
        "eu"
    };
    (instance) => {
        "cart-0"
    };
    (shard) => {
        "5"
    };
    (name) => {
        "web-1"
    };
    (scope) => {
        "shop"
    };
}

macro_rules! keys {
    (
        service { $(
            $(#[$service_doc:meta])*
            $service_key:ident $(($($service_field:ident: $service_segment:ty),+))? at $folder:literal
            => $service_value:ident($service_type:ident) $service_rules:tt
        )* }
        mesh { $(
            $(#[$doc:meta])*
            $key:ident $(($($field:ident: $segment:ty),+))? at [$first:literal $(, $more:literal)*]
            => $value:ident($type:ident) $rules:tt
        )* }
    ) => {
        /// A key of each kind of record, and of earlier values of two.
        const KEYS: &[&str] = &[
            $(concat!("/t/shop/", $folder, "/cart" $($(, "/", example!($service_field))+)?),)*
            $(concat!("/g/", $first $(, "/", $more)* $($(, "/", example!($field))+)?),)*
            "/t/shop/history/services/cart/00000000000000000042",
            "/t/shop/history/policies/cart/00000000000000000042",
            "/g/history/regions/00000000000000000042",
        ];
    };
}

fairmesh_model::record_kinds!(keys);

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Some((chosen, value)) = data.split_first() else { return };
    let text = KEYS[usize::from(*chosen) % KEYS.len()];
    let key = RecordKey::parse(text).expect("the keys above are well formed");
    let checked = record_encoding::check(text, value);
    if matches!(key, RecordKey::History(..) | RecordKey::MeshHistory(..)) {
        if let Ok(history) = record_encoding::decode_history(value) {
            let encoded = record_encoding::encode_history(&history);
            assert_eq!(record_encoding::decode_history(&encoded), Ok(history));
        } else {
            assert!(checked.is_err(), "{text} was accepted and cannot be read");
        }
        return;
    }
    let decoded = record_encoding::decode(&key, value);
    assert_eq!(checked.is_ok(), decoded.is_ok(), "{text}: {checked:?}, and {decoded:?}");
    if let Ok(record) = decoded {
        let encoded = record_encoding::encode(&record);
        assert_eq!(record_encoding::decode(&key, &encoded).as_ref(), Ok(&record));
        assert_eq!(record_encoding::encode(&record), encoded, "one record has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::RecordKind;

    use super::*;

    #[test]
    fn keys_of_all_kinds_parse_as_displayed() {
        for text in KEYS {
            let key = RecordKey::parse(text).unwrap();
            assert_eq!((&*key.to_string(), RecordKind::of(text)), (*text, Some(key.kind())));
        }
        let has_key = |kind: &RecordKind| KEYS.iter().any(|key| RecordKind::of(key) == Some(*kind));
        let missing: Vec<_> = RecordKind::ALL.iter().filter(|kind| !has_key(kind)).collect();
        assert_eq!(missing, [&RecordKind::ShardMap], "shard_decode has its parts");
    }
}
