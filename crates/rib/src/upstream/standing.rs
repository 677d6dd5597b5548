use std::time::Duration;

use tokio::time::Instant;

/// The least age of what is not followed to the source.
const LEAST: Duration = Duration::from_millis(1);

/// How what is held of a prefix stands, and how far it may be trusted. Callers pass `now`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nothing of it has come.
    #[default]
    Missing,
    /// A copy that was `age` old at `at` and is not followed now.
    Held {
        /// When it was that old.
        at: Instant,
        /// How old it was.
        age: Duration,
    },
    /// The upstream sends what changes.
    Followed {
        /// When the upstream said so.
        at: Instant,
        /// How old it said that its own copy was.
        age: Duration,
    },
    /// The upstream does not serve it, and said why.
    Refused(String),
}

impl Standing {
    /// Whether there is a copy to lose.
    pub fn holds(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Followed { .. })
    }

    /// Whether its [age](Self::age) is other than zero.
    pub fn ages(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Followed { age, .. } => !age.is_zero(),
            Self::Missing | Self::Refused(_) => false,
        }
    }

    /// How old what is held may be; zero where it is followed to the source.
    pub fn age(&self, now: Instant) -> Duration {
        match self {
            // Never zero, which would say that it is followed.
            Self::Held { at, age } => (*age + now.duration_since(*at)).max(LEAST),
            Self::Followed { age, .. } if age.is_zero() => Duration::ZERO,
            Self::Followed { at, age } => *age + now.duration_since(*at),
            Self::Missing | Self::Refused(_) => Duration::ZERO,
        }
    }

    /// The upstream says that what it sends is `told` old at worst and ages, or no longer does where that is zero.
    pub fn contact(&mut self, told: Duration, now: Instant) {
        if let Self::Followed { .. } = self {
            let age = if told.is_zero() { told } else { self.age(now).max(told) };
            *self = Self::Followed { at: now, age };
        }
    }

    /// The upstream is away: what was followed ages, and a refusal no longer holds.
    pub fn disconnected(&mut self, now: Instant) {
        match self {
            Self::Followed { .. } => *self = Self::Held { at: now, age: self.age(now) },
            Self::Refused(_) => *self = Self::Missing,
            Self::Missing | Self::Held { .. } => {}
        }
    }
}
