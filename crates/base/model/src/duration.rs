//! Parses and formats durations.

use std::time::Duration;

use crate::Invalid;

/// Units from longest to shortest, with their lengths in nanoseconds.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];

/// Alternative unit names, with the unit's length in nanoseconds.
const WORDS: [(&[&str], u64); 6] = [
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], UNITS[0].1),
    (&["m", "min", "mins", "minute", "minutes"], UNITS[1].1),
    (&["s", "sec", "secs", "second", "seconds"], UNITS[2].1),
    (&["ms", "msec", "msecs", "millis", "millisecond", "milliseconds"], UNITS[3].1),
    (&["us", "usec", "usecs", "micros", "microsecond", "microseconds"], UNITS[4].1),
];

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
        let hint = match (without_fraction(text), meant(text)) {
            (Some(whole), _) => format!("durations are whole numbers: write {whole}"),
            (None, Some(meant)) => {
                format!("durations have one number and one of us, ms, s, m and h: write {meant}")
            }
            // In most settings, a bare number was meant as milliseconds or seconds.
            (None, None) if unit.is_none() && number == text && !number.is_empty() => {
                format!("write the unit too, us, ms, s, m or h, such as {number}s or {number}ms")
            }
            (None, None) => "write a whole number and us, ms, s, m or h, such as 35ms".to_owned(),
        };
        Invalid::new("", format!("'{text}' is not a duration"), hint)
    })
}

/// A suggestion for input with several numbers or unknown unit names: `2h30m`, `2min`, `1 day`.
fn meant(text: &str) -> Option<String> {
    let mut rest = text.trim();
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let each = WORDS.iter().find(|(words, _)| words.contains(&&*unit.to_ascii_lowercase()))?.1;
        nanos = nanos.checked_add(number.parse::<u64>().ok()?.checked_mul(each)?)?;
        rest = after.trim_start();
    }
    (nanos > 0).then(|| write_duration(Duration::from_nanos(nanos)))
}

/// A suggestion for a decimal number such as `1.5s`: the same duration as a whole number of a smaller unit.
fn without_fraction(text: &str) -> Option<String> {
    let (unit, each) = UNITS.iter().rev().find(|(unit, _)| text.ends_with(unit) && is_unit_of(text, unit))?;
    let (whole, fraction) = text.strip_suffix(unit)?.trim_end().split_once('.')?;
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (whole, fraction) = (whole.parse::<u64>().ok()?, fraction.parse::<u64>().ok()?);
    let nanos = whole.checked_mul(*each)?.checked_add(fraction.checked_mul(*each)? / scale)?;
    Some(write_duration(Duration::from_nanos(nanos)))
}

/// Whether the text ends in exactly this unit, not in a longer one.
fn is_unit_of(text: &str, unit: &str) -> bool {
    text.strip_suffix(unit).is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit() || c == ' '))
}

/// Formats a duration in the largest unit that loses nothing. Fractions of a microsecond are cut off.
pub fn write_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    let (unit, each) =
        UNITS.iter().find(|(_, each)| nanos.is_multiple_of(u128::from(*each))).unwrap_or(&UNITS[4]);
    format!("{}{unit}", nanos / u128::from(*each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_duration_is_refused_with_whole_number_suggestion() {
        for (text, whole) in [("1.5s", "1500ms"), ("0.25m", "15s"), ("1.5 ms", "1500us"), ("2.0h", "2h")] {
            let refused = read_duration(text).unwrap_err();
            assert!(refused.hint.ends_with(&format!(" {whole}")), "{text}: {refused:?}");
        }
        let meant =
            [("2min", "2m"), ("2h30m", "150m"), ("1 day", "24h"), ("90 Seconds", "90s"), ("1m 30s", "90s")];
        for (text, whole) in meant {
            let refused = read_duration(text).unwrap_err();
            assert!(refused.hint.ends_with(&format!(": write {whole}")), "{text}: {refused:?}");
        }
        assert!(read_duration("500").unwrap_err().hint.ends_with("such as 500s or 500ms"));
        assert!(read_duration("99999999999999 days").unwrap_err().hint.contains("such as 35ms"));
        for text in ["1.s", ".5s", "1.5", "1.5x", "1.99999999999999999999s"] {
            assert!(read_duration(text).unwrap_err().hint.contains("such as"), "{text}");
        }
    }
}
