use std::{fmt, str::FromStr};

use crate::Invalid;

/// A key of a sharded service: a 128-bit number that Fairmesh only compares (ServiceRouter §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey(pub u128);

impl ShardKey {
    /// The greatest key.
    pub const MAX: Self = Self(u128::MAX);
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for ShardKey {
    type Err = Invalid;

    /// Parses a decimal number, or a hexadecimal number after `0x`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.map(Self).map_err(|_| {
            Invalid::new(
                "",
                format!("'{text}' is not a key"),
                "write a whole number from 0 to 2^128-1, decimal or hexadecimal after 0x",
            )
        })
    }
}

impl From<u128> for ShardKey {
    fn from(key: u128) -> Self {
        Self(key)
    }
}

impl From<u64> for ShardKey {
    fn from(key: u64) -> Self {
        Self(key.into())
    }
}

impl From<u32> for ShardKey {
    fn from(key: u32) -> Self {
        Self(key.into())
    }
}

/// Converts signed ids, and literals without a suffix. Negative numbers count from the end of the key space: −1 is
/// [`ShardKey::MAX`] for both widths.
impl From<i64> for ShardKey {
    fn from(key: i64) -> Self {
        Self(i128::from(key).cast_unsigned())
    }
}

/// Converts like an `i64`.
impl From<i32> for ShardKey {
    fn from(key: i32) -> Self {
        i64::from(key).into()
    }
}

/// A range of keys. The last key is stored, because the exclusive end of the whole key space does not fit into 128
/// bits. Displayed with an exclusive end, as in the paper: `[500, 900)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The first key.
    pub first: ShardKey,
    /// The last key; at least `first`.
    pub last: ShardKey,
}

impl KeyRange {
    /// The whole key space.
    pub const ALL: Self = Self { first: ShardKey(0), last: ShardKey::MAX };

    /// The keys from `start` to the exclusive `end`; an `end` of `None` means 2^128.
    pub fn new(start: ShardKey, end: Option<ShardKey>) -> Result<Self, Invalid> {
        let last = match end {
            None => Some(ShardKey::MAX),
            Some(end) => end.0.checked_sub(1).map(ShardKey).filter(|last| *last >= start),
        };
        match last {
            Some(last) => Ok(Self { first: start, last }),
            None => Err(Invalid::new(
                "",
                format!("the range [{start}, {}) contains no key", end.unwrap_or_default()),
                "write an end above the start, or 'max' for 2^128",
            )),
        }
    }

    /// Whether the range contains `key`.
    pub fn contains(&self, key: ShardKey) -> bool {
        (self.first..=self.last).contains(&key)
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last.0.checked_add(1) {
            Some(end) => write!(f, "[{}, {end})", self.first),
            None => write!(f, "[{}, max)", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_keys_parse_decimal_and_hexadecimal() {
        assert_eq!("618".parse(), Ok(ShardKey(618)));
        assert_eq!("0xff".parse(), Ok(ShardKey(255)));
        assert!("-1".parse::<ShardKey>().is_err());
    }

    #[test]
    fn shard_keys_convert_from_integers_of_any_width() {
        assert_eq!(ShardKey::from(618), ShardKey::from(618_u64));
        assert_eq!(ShardKey::from(u64::MAX), ShardKey(u64::MAX.into()));
        assert_eq!([ShardKey::from(-1), ShardKey::from(-1_i64)], [ShardKey::MAX; 2]);
    }

    #[test]
    fn key_range_excludes_its_end_and_may_reach_last_key() {
        let range = KeyRange::new(ShardKey(500), Some(ShardKey(900))).unwrap();
        assert!(range.contains(ShardKey(899)) && !range.contains(ShardKey(900)));
        assert_eq!(range.to_string(), "[500, 900)");
        assert!(KeyRange::new(ShardKey(5), None).unwrap().contains(ShardKey::MAX));
        assert!(KeyRange::new(ShardKey(5), Some(ShardKey(5))).is_err());
        assert!(KeyRange::new(ShardKey(0), Some(ShardKey(0))).is_err());
    }
}
