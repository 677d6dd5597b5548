use std::time::Duration;

use tokio::time::Instant;

/// How old what a mesh knows is: as the agent last said, and growing from then on unless it said that it does not age.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age {
    /// The age at a moment from which on it grows; `None` while nothing ages. Not the moment of birth, which may lie
    /// before the clock's beginning.
    oldest: Option<(Duration, Instant)>,
    /// Whether the present connection has brought something. What was before it no longer counts then.
    heard: bool,
}

impl Age {
    /// The age; `None` where nothing is known to age.
    pub(super) fn at(&self, now: Instant) -> Option<Duration> {
        self.oldest.map(|(age, since)| age + now.saturating_duration_since(since))
    }

    /// The agent sent something that is `age` old.
    pub(super) fn arrived(&mut self, age: Duration, now: Instant) {
        if !std::mem::replace(&mut self.heard, true) {
            self.oldest = None;
        }
        if !age.is_zero() {
            self.read(age, now);
        }
    }

    /// The agent says that what it sent ages and is `age` old at worst, or that it no longer does where that is zero.
    pub(super) fn told(&mut self, age: Duration, now: Instant) {
        self.oldest = None;
        self.arrived(age, now);
    }

    /// Something `age` old is used that nobody keeps current.
    pub(super) fn read(&mut self, age: Duration, now: Instant) {
        self.oldest = Some((self.at(now).unwrap_or_default().max(age), now));
    }

    /// The agent is away: everything ages.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.heard = false;
        self.read(Duration::ZERO, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_oldest_counts_and_grows_until_the_agent_is_in_touch() {
        let (mut age, start) = (Age::default(), Instant::now());
        age.arrived(Duration::ZERO, start);
        assert_eq!(age.at(start + SECOND), None);
        age.told(SECOND, start);
        assert_eq!(age.at(start + SECOND), Some(2 * SECOND));
        age.arrived(Duration::ZERO, start + SECOND);
        age.arrived(10 * SECOND, start + SECOND);
        assert_eq!(
            age.at(start + 2 * SECOND),
            Some(11 * SECOND),
            "one fresh part does not make the rest fresh"
        );
        age.told(Duration::ZERO, start + 2 * SECOND);
        assert_eq!(age.at(start + 3 * SECOND), None);
    }

    #[test]
    fn a_new_connection_is_taken_at_its_word_once_it_says_something() {
        let (mut age, start) = (Age::default(), Instant::now());
        age.read(10 * SECOND, start);
        age.disconnected(start + SECOND);
        assert_eq!(age.at(start + 2 * SECOND), Some(12 * SECOND));
        age.arrived(3 * SECOND, start + 2 * SECOND);
        assert_eq!(age.at(start + 3 * SECOND), Some(4 * SECOND));
        age.disconnected(start + 3 * SECOND);
        age.arrived(Duration::ZERO, start + 4 * SECOND);
        assert_eq!(age.at(start + 5 * SECOND), None);
    }
}
