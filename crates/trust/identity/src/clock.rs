use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Wall-clock time for the validity of certificates. Tests use their own clocks.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the time since 1970.
    fn now(&self) -> Duration;
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where certificates meet the clock of the system"
    )]
    fn now(&self) -> Duration {
        // With a clock before 1970, no certificate is valid yet.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
