use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Wall-clock time for certificate validity. Tests use a clock of their own.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Time since 1970.
    fn now(&self) -> Duration;
}

/// The clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where certificates meet the clock of the system"
    )]
    fn now(&self) -> Duration {
        // A clock before 1970 makes all certificates not yet valid.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
