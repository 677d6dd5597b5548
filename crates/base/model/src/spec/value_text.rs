//! Parsing and formatting of keys, names, timeouts and other values.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(super) use crate::duration::{read_duration, write_duration};
use crate::{Invalid, Timeouts};

/// A key as written: a number, or a string such as `0xff`. JSON needs a string above 2^64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyText(pub String);

impl<K: Into<u128>> From<K> for KeyText {
    fn from(key: K) -> Self {
        Self(key.into().to_string())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for KeyText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeyText".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A key from 0 to 2^128-1; in quotes above 2^64.",
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }]
        })
    }
}

impl Serialize for KeyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A 64-bit float represents whole numbers exactly up to 2^53.
        match self.0.parse::<u64>() {
            Ok(number) if number <= 1 << 53 => serializer.serialize_u64(number),
            _ => serializer.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

struct KeyVisitor;

impl de::Visitor<'_> for KeyVisitor {
    type Value = KeyText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key from 0 to 2^128-1 (in quotes above 2^64)")
    }

    fn visit_u64<E: de::Error>(self, key: u64) -> Result<KeyText, E> {
        Ok(KeyText(key.to_string()))
    }

    fn visit_i64<E: de::Error>(self, key: i64) -> Result<KeyText, E> {
        Ok(KeyText(key.to_string()))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<KeyText, E> {
        Err(E::custom("this is not a whole number up to 2^64; write a larger key in quotes"))
    }

    fn visit_u128<E: de::Error>(self, key: u128) -> Result<KeyText, E> {
        Ok(KeyText(key.to_string()))
    }

    fn visit_i128<E: de::Error>(self, key: i128) -> Result<KeyText, E> {
        Ok(KeyText(key.to_string()))
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<KeyText, E> {
        Ok(KeyText(key.to_owned()))
    }
}

/// Reads a weight, which is a whole number. A percentage is refused with a hint.
pub(super) fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct WeightVisitor;

    impl de::Visitor<'_> for WeightVisitor {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, 0 or more")
        }

        fn visit_u64<E: de::Error>(self, weight: u64) -> Result<u32, E> {
            u32::try_from(weight).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(weight), &self))
        }

        fn visit_i64<E: de::Error>(self, weight: i64) -> Result<u32, E> {
            u32::try_from(weight).map_err(|_| E::invalid_value(de::Unexpected::Signed(weight), &self))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u32, E> {
            let hint = match text.strip_suffix('%').map(str::trim_end) {
                Some(number) if number.parse::<u32>().is_ok() => {
                    format!("write {number}: weights are relative to each other, and need not add up to 100")
                }
                _ => String::from("write a whole number, 0 or more"),
            };
            Err(E::custom(format!("'{text}' is not a weight; {hint}")))
        }
    }
    deserializer.deserialize_any(WeightVisitor)
}

/// Parses `text` and adds the name of `field` to errors.
pub(super) fn read<T: FromStr<Err = Invalid>>(field: &str, text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|e: Invalid| e.within(field))
}

/// Parses an optional `text` and adds the name of `field` to errors.
pub(super) fn read_option<T: FromStr<Err = Invalid>>(
    field: &str,
    text: Option<&String>,
) -> Result<Option<T>, Invalid> {
    text.map(|text| read(field, text)).transpose()
}

/// Parses the optional duration in `field`.
pub(super) fn read_duration_option(field: &str, text: Option<&String>) -> Result<Option<Duration>, Invalid> {
    text.map(|text| read_duration(text).map_err(|e| e.within(field))).transpose()
}

/// Parses the three timeouts of a policy or a route.
pub(super) fn read_timeouts(
    total: &Option<String>,
    response_header: &Option<String>,
    idle: &Option<String>,
) -> Result<Timeouts, Invalid> {
    Ok(Timeouts {
        total: read_duration_option("timeout", total.as_ref())?,
        response_header: read_duration_option("responseHeaderTimeout", response_header.as_ref())?,
        idle: read_duration_option("idleTimeout", idle.as_ref())?,
    })
}

/// Parses `ip:port`.
pub(super) fn read_address(field: &str, text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        Invalid::new(
            field,
            format!("'{text}' is not an address"),
            "write an IP address and a port, such as 10.0.0.7:8080 or [fd00::7]:8080",
        )
    })
}
