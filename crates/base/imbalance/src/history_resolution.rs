use fairmesh_model::Invalid;

use crate::Minute;

/// Resolution of stored history: minutes for hours, hours for days, days for years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// One row per minute, for six hours.
    Minute,
    /// One row per hour, for two weeks.
    Hour,
    /// One row per day (UTC), for five years.
    Day,
}

impl Tier {
    /// All tiers, from the finest to the coarsest.
    pub const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    /// Length of a bucket, in minutes.
    pub fn minutes(self) -> u32 {
        match self {
            Self::Minute => 1,
            Self::Hour => 60,
            Self::Day => 24 * 60,
        }
    }

    /// Length of the stored history, in minutes.
    pub fn kept(self) -> u32 {
        match self {
            Self::Minute => 6 * 60,
            Self::Hour => 14 * 24 * 60,
            Self::Day => 5 * 366 * 24 * 60,
        }
    }

    /// The first minute of the bucket that holds `minute`.
    pub fn bucket(self, minute: Minute) -> Minute {
        Minute(minute.0 - minute.0 % self.minutes())
    }

    /// The last minute of the stored bucket that begins at `start`. A bucket that lasts until `recent` or longer may not be
    /// over, and does not say how far it goes: its first minute.
    pub fn last_minute(self, start: Minute, recent: Minute) -> Minute {
        let end = Minute(start.0 + self.minutes() - 1);
        if end < recent { end } else { start }
    }

    /// The finest tier that stores the last `minutes`; the coarsest if none does.
    pub fn for_window(minutes: u32) -> Self {
        Self::ALL.into_iter().find(|tier| minutes <= tier.kept()).unwrap_or(Self::Day)
    }

    /// The name in storage keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// Parses a window in minutes: a whole number and `m`, `h` or `d`, such as `90m`.
///
/// # Errors
/// If the window is malformed, 0, or longer than the history.
pub fn read_window(text: &str) -> Result<u32, Invalid> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let each = match unit {
        "m" => Some(1),
        "h" => Some(60),
        "d" => Some(24 * 60),
        _ => None,
    };
    let minutes = number.parse::<u32>().ok().zip(each).and_then(|(number, each)| number.checked_mul(each));
    minutes.filter(|minutes| (1..=Tier::Day.kept()).contains(minutes)).ok_or_else(|| {
        let problem = format!("'{text}' is not a time window");
        Invalid::new(
            "window",
            problem,
            "write a whole number and m, h or d, such as 90m, 24h or 7d; at most 1830d",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_window_accepts_whole_minutes_hours_and_days() {
        let read = |text| read_window(text).ok();
        assert_eq!([read("90m"), read("24h"), read("7d")], [Some(90), Some(1_440), Some(10_080)]);
        assert_eq!(read("1830d"), Some(Tier::Day.kept()));
        for wrong in ["", "h", "5", "0m", "10s", "-1h", "1.5h", "1831d", "99999999999d"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn imbalance_history_buckets_begin_at_whole_hours_and_days() {
        let minute = Minute(24 * 60 * 3 + 125);
        assert_eq!(Tier::Minute.bucket(minute), minute);
        assert_eq!(Tier::Hour.bucket(minute), Minute(24 * 60 * 3 + 120));
        assert_eq!(Tier::Day.bucket(minute), Minute(24 * 60 * 3));
        assert_eq!(Tier::for_window(60), Tier::Minute);
        assert_eq!(Tier::for_window(24 * 60), Tier::Hour);
        assert_eq!(Tier::for_window(u32::MAX), Tier::Day);
    }
}
