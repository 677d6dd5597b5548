use std::time::Duration;

use tokio::time::Instant;

/// The age of a mesh's data: as the agent last reported, and growing from then on unless the agent reported that it is
/// current.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataAge {
    /// The age at the moment from which on it grows; `None` while nothing ages. Not the time of origin, which may lie
    /// before the start of the clock.
    oldest: Option<(Duration, Instant)>,
    /// Whether data has arrived on the current connection, which replaces the age of earlier data.
    has_data: bool,
}

impl DataAge {
    /// The age; `None` where nothing is known to age.
    pub(super) fn at(&self, now: Instant) -> Option<Duration> {
        self.oldest.map(|(age, since)| age + now.saturating_duration_since(since))
    }

    /// Data of this `age` arrived from the agent.
    pub(super) fn arrived(&mut self, age: Duration, now: Instant) {
        if !std::mem::replace(&mut self.has_data, true) {
            self.oldest = None;
        }
        if !age.is_zero() {
            self.add_unrefreshed(age, now);
        }
    }

    /// The agent reports that its data ages and is at most `age` old, or that it no longer ages where that is zero.
    pub(super) fn set(&mut self, age: Duration, now: Instant) {
        self.oldest = None;
        self.arrived(age, now);
    }

    /// Data of this `age` is used that is not refreshed.
    pub(super) fn add_unrefreshed(&mut self, age: Duration, now: Instant) {
        self.oldest = Some((self.at(now).unwrap_or_default().max(age), now));
    }

    /// The agent is disconnected: all data ages.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.has_data = false;
        self.add_unrefreshed(Duration::ZERO, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_oldest_data_counts_and_ages_until_the_agent_has_its_source() {
        let (mut age, start) = (DataAge::default(), Instant::now());
        age.arrived(Duration::ZERO, start);
        assert_eq!(age.at(start + SECOND), None);
        age.set(SECOND, start);
        assert_eq!(age.at(start + SECOND), Some(2 * SECOND));
        age.arrived(Duration::ZERO, start + SECOND);
        age.arrived(10 * SECOND, start + SECOND);
        assert_eq!(
            age.at(start + 2 * SECOND),
            Some(11 * SECOND),
            "a fresh prefix does not refresh the others"
        );
        age.set(Duration::ZERO, start + 2 * SECOND);
        assert_eq!(age.at(start + 3 * SECOND), None);
    }

    #[test]
    fn the_age_of_a_new_connection_counts_once_it_delivers_data() {
        let (mut age, start) = (DataAge::default(), Instant::now());
        age.add_unrefreshed(10 * SECOND, start);
        age.disconnected(start + SECOND);
        assert_eq!(age.at(start + 2 * SECOND), Some(12 * SECOND));
        age.arrived(3 * SECOND, start + 2 * SECOND);
        assert_eq!(age.at(start + 3 * SECOND), Some(4 * SECOND));
        age.disconnected(start + 3 * SECOND);
        age.arrived(Duration::ZERO, start + 4 * SECOND);
        assert_eq!(age.at(start + 5 * SECOND), None);
    }
}
