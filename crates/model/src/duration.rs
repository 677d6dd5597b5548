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
        let hint = match (number, without_fraction(text)) {
            (_, Some(whole)) => format!("durations are whole numbers: write {whole}"),
            ("", None) => "write a whole number and us, ms, s, m or h, such as 35ms".to_owned(),
            (number, None) => format!("write a whole number and us, ms, s, m or h, such as {number}s"),
        };
        Invalid::new("", format!("'{text}' is not a duration"), hint)
    })
}

/// The duration that a decimal number such as `1.5s` means, in a unit where it is whole.
fn without_fraction(text: &str) -> Option<String> {
    let (unit, each) = UNITS.iter().rev().find(|(unit, _)| text.ends_with(unit) && is_unit_of(text, unit))?;
    let (whole, fraction) = text.strip_suffix(unit)?.trim_end().split_once('.')?;
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (whole, fraction) = (whole.parse::<u64>().ok()?, fraction.parse::<u64>().ok()?);
    let nanos = whole.checked_mul(*each)?.checked_add(fraction.checked_mul(*each)? / scale)?;
    Some(write_duration(Duration::from_nanos(nanos)))
}

/// Whether the text has this unit, and not a longer one that ends alike.
fn is_unit_of(text: &str, unit: &str) -> bool {
    text.strip_suffix(unit).is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit() || c == ' '))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_number_is_refused_with_the_whole_one() {
        for (text, whole) in [("1.5s", "1500ms"), ("0.25m", "15s"), ("1.5 ms", "1500us"), ("2.0h", "2h")] {
            let refused = read_duration(text).unwrap_err();
            assert!(refused.hint.ends_with(&format!(" {whole}")), "{text}: {refused:?}");
        }
        for text in ["1.s", ".5s", "1.5", "1.5x", "1.99999999999999999999s"] {
            assert!(read_duration(text).unwrap_err().hint.contains("such as"), "{text}");
        }
    }
}
