use std::{fmt, str::FromStr};

use crate::Invalid;

/// A share of calls in millionths, 0 to 1,000,000; written as `5%` or `0.01%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// No call.
    pub const NONE: Self = Self(0);

    /// Every call.
    pub const ALL: Self = Self(1_000_000);

    /// A share of `millionths`, which must be at most 1,000,000.
    pub fn of_millionths(millionths: u32) -> Result<Self, Invalid> {
        if millionths <= Self::ALL.0 {
            return Ok(Self(millionths));
        }
        Err(Invalid::new("", format!("{millionths} millionths are more than all"), "write 0 to 1000000"))
    }

    /// The share in millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }
}

impl FromStr for Share {
    type Err = Invalid;

    /// Parses a percentage such as `5%` or `0.5%`, with up to four decimals.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refused =
            || Invalid::new("", format!("'{text}' is not a share"), "write 0% to 100%, such as 5% or 0.01%");
        let digits = |text: &str, most: usize| {
            ((1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse::<u32>().ok())
                .flatten()
        };
        let number = text.strip_suffix('%').ok_or_else(refused)?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let whole = digits(whole, 3).ok_or_else(refused)?;
        let part = digits(part, 4).ok_or_else(refused)? * 10_u32.pow(4 - part.len() as u32);
        Self::of_millionths(whole * 10_000 + part).map_err(|_| refused())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        match part {
            0 => write!(f, "{whole}%"),
            part => write!(f, "{whole}.{}%", format!("{part:04}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_shares_parse_as_displayed() {
        for (text, millionths) in
            [("0%", 0), ("100%", 1_000_000), ("5%", 50_000), ("0.01%", 100), ("12.5%", 125_000)]
        {
            let share: Share = text.parse().unwrap();
            assert_eq!((share.millionths(), share.to_string().as_str()), (millionths, text));
        }
        assert_eq!("0.5000%".parse::<Share>().unwrap().to_string(), "0.5%");
        for wrong in ["5", "101%", "100.0001%", "0.00001%", "-1%", "%", ".5%", "5.%", "+5%", "1e1%", ""] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
