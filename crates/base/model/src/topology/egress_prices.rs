//! Egress prices: prices of bytes between regions.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::Regions;
use crate::{Invalid, Region};

/// Picodollars per dollar, and the number of decimals that they represent.
const PICOS: u64 = 1_000_000_000_000;
const DECIMALS: usize = 12;
/// Maximum number of region pairs with a separate price.
pub const MAX_EGRESS_PRICES: usize = 4_096;

/// An amount of money from 0 to 18 million dollars, in steps of 10⁻¹² dollars, so that the price of a single call is
/// exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dollars(u64);

impl Dollars {
    /// Number of [`Self::picodollars`] per dollar.
    pub const PER_DOLLAR: u64 = PICOS;

    /// An amount in units of 10⁻¹² dollars.
    pub fn of_picodollars(picodollars: u64) -> Self {
        Self(picodollars)
    }

    /// The amount in units of 10⁻¹² dollars.
    pub fn picodollars(self) -> u64 {
        self.0
    }

    /// The amount in dollars.
    pub fn amount(self) -> f64 {
        self.0 as f64 / PICOS as f64
    }
}

impl FromStr for Dollars {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || {
            Invalid::new("", format!("'{text}' is no amount of dollars"), "write an amount such as '$0.02'")
        };
        let number = text.strip_prefix('$').unwrap_or(text);
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let are_digits =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !are_digits(whole) || !are_digits(part) || part.len() > DECIMALS {
            return Err(invalid());
        }
        let whole: u64 = whole.parse().map_err(|_| invalid())?;
        let part: u64 = format!("{part:0<DECIMALS$}").parse().map_err(|_| invalid())?;
        let sum = whole.checked_mul(PICOS).and_then(|whole| whole.checked_add(part));
        sum.map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:0DECIMALS$}", self.0 % PICOS);
        let decimals = decimals.trim_end_matches('0');
        let point = if decimals.is_empty() { "" } else { "." };
        write!(f, "${}{point}{decimals}", self.0 / PICOS)
    }
}

/// The cost of bytes between regions, and its weight against latency. The bill and the optimizer use the same prices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Price of 10⁹ bytes between two regions without a separate price.
    pub price: Dollars,
    /// Prices of 10⁹ bytes, by the sending and the receiving region.
    pub prices: BTreeMap<(Region, Region), Dollars>,
    /// Value of one millisecond less latency of one call. If `None`, plans ignore egress.
    pub per_ms: Option<Dollars>,
    /// Maximum egress cost of calls to planned services, per hour.
    pub cap: Option<Dollars>,
}

impl Egress {
    /// The price of 10⁹ bytes from one region to another; zero within a region.
    pub fn price(&self, from: &Region, to: &Region) -> Dollars {
        if from == to {
            return Dollars::default();
        }
        self.prices.get(&(from.clone(), to.clone())).copied().unwrap_or(self.price)
    }

    /// Checks that prices are for pairs of different declared regions, and that the value of a millisecond is not
    /// zero.
    pub(super) fn validate(&self, regions: &Regions) -> Result<(), Invalid> {
        if self.prices.len() > MAX_EGRESS_PRICES {
            let hint = format!("write at most {MAX_EGRESS_PRICES}, and 'price' for all others");
            return Err(Invalid::new("egress.prices", "are too many", hint));
        }
        for (from, to) in self.prices.keys() {
            let problem = match regions.regions.contains_key(from) && regions.regions.contains_key(to) {
                false => format!("'{from}' or '{to}' is not a region of this file"),
                true if from == to => {
                    format!("'{from}' is on both sides, and bytes within a region cost nothing")
                }
                true => continue,
            };
            return Err(Invalid::new(
                "egress.prices",
                problem,
                "name two different regions that are declared here",
            ));
        }
        match self.per_ms {
            Some(Dollars(0)) => {
                let hint = "write what a millisecond is worth, or leave it out to plan by latency alone";
                Err(Invalid::new("egress.dollarsPerMs", "is 0", hint))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollar_amounts_round_trip_and_malformed_ones_are_refused() {
        for (text, written) in [
            ("$0.02", "$0.02"),
            ("0.00001", "$0.00001"),
            ("$40", "$40"),
            ("1.50", "$1.5"),
            ("0.000000000001", "$0.000000000001"),
        ] {
            let amount: Dollars = text.parse().unwrap();
            assert_eq!(amount.to_string(), written);
            assert_eq!(written.parse::<Dollars>().unwrap(), amount);
        }
        for text in ["", "$", "-1", "1e-5", ".5", "1.", "0.0000000000001", "99999999", "€1", "NaN"] {
            assert!(text.parse::<Dollars>().is_err(), "{text}");
        }
    }

    #[test]
    fn egress_price_is_directional_and_zero_within_region() {
        let [eu, us] = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let amount = |text: &str| text.parse::<Dollars>().unwrap();
        let egress = Egress {
            price: amount("$0.02"),
            prices: [((eu.clone(), us.clone()), amount("$0.08"))].into(),
            ..Egress::default()
        };
        assert_eq!(egress.price(&eu, &us), amount("0.08"));
        assert_eq!(egress.price(&us, &eu), amount("0.02"));
        assert_eq!(egress.price(&eu, &eu), Dollars::default());
    }
}
