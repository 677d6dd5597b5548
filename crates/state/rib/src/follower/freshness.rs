use std::time::Duration;

use tokio::time::Instant;

/// Minimum age of a copy that does not follow the source.
const MIN_AGE: Duration = Duration::from_millis(1);

/// State and age of the copy of a prefix. Callers pass `now`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Nothing was received yet.
    #[default]
    Missing,
    /// There is a copy, which is no longer followed. It was `age` old at `at`.
    Held {
        /// When the age was determined.
        at: Instant,
        /// Age at `at`.
        age: Duration,
    },
    /// The upstream sends changes of the copy.
    Followed {
        /// When the upstream reported its age.
        at: Instant,
        /// Age that the upstream reported for its own copy.
        age: Duration,
    },
    /// The upstream does not serve the prefix, for the given reason.
    Refused(String),
}

impl Freshness {
    /// Whether there is a copy.
    pub fn has_copy(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Followed { .. })
    }

    /// Whether the [age](Self::age) is above zero.
    pub fn is_aging(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Followed { age, .. } => !age.is_zero(),
            Self::Missing | Self::Refused(_) => false,
        }
    }

    /// Returns the maximum age of the copy; zero while it is followed up to the source.
    pub fn age(&self, now: Instant) -> Duration {
        match self {
            // Zero would mean that the copy is followed.
            Self::Held { at, age } => (*age + now.duration_since(*at)).max(MIN_AGE),
            Self::Followed { age, .. } if age.is_zero() => Duration::ZERO,
            Self::Followed { at, age } => *age + now.duration_since(*at),
            Self::Missing | Self::Refused(_) => Duration::ZERO,
        }
    }

    /// Sets the age that the upstream reports for its own copy. The copy ages from now on, unless the age is zero.
    pub fn set_age(&mut self, age_at_upstream: Duration, now: Instant) {
        if let Self::Followed { .. } = self {
            let age =
                if age_at_upstream.is_zero() { age_at_upstream } else { self.age(now).max(age_at_upstream) };
            *self = Self::Followed { at: now, age };
        }
    }

    /// Records that the connection is lost: a followed copy ages, and a refusal no longer counts.
    pub fn disconnected(&mut self, now: Instant) {
        match self {
            Self::Followed { .. } => *self = Self::Held { at: now, age: self.age(now) },
            Self::Refused(_) => *self = Self::Missing,
            Self::Missing | Self::Held { .. } => {}
        }
    }
}
