//! Durations as text.

use std::time::Duration;

use crate::Invalid;

/// Units by descending length, each with its nanoseconds.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];

/// Parses a duration: a whole number and `us`, `ms`, `s`, `m` or `h`, such as `35ms`.
pub fn read_duration(text: &str) -> Result<Duration, Invalid> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim_start());
    let nanos = match (number.parse::<u64>(), unit) {
        (Ok(number), Some((_, each))) => number.checked_mul(*each),
        _ => None,
    };
    nanos.map(Duration::from_nanos).ok_or_else(|| {
        let hint = match number {
            "" => "write a whole number and us, ms, s, m or h, such as 35ms".to_owned(),
            number => format!("write a whole number and us, ms, s, m or h, such as {number}s"),
        };
        Invalid::new("", format!("'{text}' is not a duration"), hint)
    })
}

/// Formats a duration in the greatest unit without loss; fractions of a microsecond are cut.
pub fn write_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    let (unit, each) =
        UNITS.iter().find(|(_, each)| nanos.is_multiple_of(u128::from(*each))).unwrap_or(&UNITS[4]);
    format!("{}{unit}", nanos / u128::from(*each))
}
