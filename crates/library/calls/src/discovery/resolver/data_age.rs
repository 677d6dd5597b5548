use std::time::Duration;

use tokio::time::Instant;

/// Age of a mesh's data. It starts from the age that the agent last reported, and grows unless the agent reported
/// current data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DataAge {
    /// Age at an instant from which it grows; `None` while the data does not age. The time of origin is not stored,
    /// since it may be before the start of the clock.
    oldest: Option<(Duration, Instant)>,
    /// Whether data has arrived on the current connection. Its age replaces the age of earlier data.
    has_data: bool,
}

/// An event that changes the age of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgeChange {
    /// Data of this age arrived.
    Arrived(Duration),
    /// The agent lost its source, and its data has this age. Zero means that the agent reaches its source again.
    Reported(Duration),
    /// The connection to the agent was lost.
    Disconnected,
}

impl AgeChange {
    /// Adds a change to the pending changes. At most three pending changes have the combined effect of all changes.
    pub(super) fn coalesce(self, waiting: &mut Vec<Self>) {
        match (self, waiting.last_mut()) {
            (Self::Arrived(age), Some(Self::Arrived(known))) => *known = age.max(*known),
            (Self::Disconnected, Some(Self::Disconnected)) => {}
            // Data of a new connection replaces the age of earlier data.
            (Self::Arrived(_), Some(Self::Disconnected)) => *waiting = vec![Self::Disconnected, self],
            (Self::Reported(_), _) => *waiting = vec![self],
            _ => waiting.push(self),
        }
    }
}

impl DataAge {
    /// Applies a change that became known at `now`.
    pub(super) fn apply(&mut self, change: AgeChange, now: Instant) {
        match change {
            AgeChange::Arrived(age) => self.arrived(age, now),
            AgeChange::Reported(age) => self.set(age, now),
            AgeChange::Disconnected => self.disconnected(now),
        }
    }

    /// Age of the data; `None` if no data is known to age.
    pub(super) fn at(&self, now: Instant) -> Option<Duration> {
        self.oldest.map(|(age, since)| age + now.saturating_duration_since(since))
    }

    /// Records that data of this `age` arrived from the agent.
    fn arrived(&mut self, age: Duration, now: Instant) {
        if !std::mem::replace(&mut self.has_data, true) {
            self.oldest = None;
        }
        if !age.is_zero() {
            self.add_unrefreshed(age, now);
        }
    }

    /// Records the agent's report that its data ages and is at most `age` old; zero means that it no longer ages.
    fn set(&mut self, age: Duration, now: Instant) {
        self.oldest = None;
        self.arrived(age, now);
    }

    /// Records that data of this `age`, which is not refreshed, is in use.
    pub(super) fn add_unrefreshed(&mut self, age: Duration, now: Instant) {
        self.oldest = Some((self.at(now).unwrap_or_default().max(age), now));
    }

    /// Records that the agent is disconnected: all data ages from now on.
    fn disconnected(&mut self, now: Instant) {
        self.has_data = false;
        self.add_unrefreshed(Duration::ZERO, now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn data_age_is_that_of_oldest_data_and_grows_while_agent_has_no_source() {
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
    fn data_age_of_new_connection_applies_once_it_delivers_data() {
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

    fn change() -> impl Strategy<Value = AgeChange> {
        prop_oneof![
            (0..4_u32).prop_map(|age| AgeChange::Arrived(age * SECOND)),
            (0..4_u32).prop_map(|age| AgeChange::Reported(age * SECOND)),
            Just(AgeChange::Disconnected),
        ]
    }

    proptest! {
        #[test]
        fn coalesced_data_age_changes_equal_sequential_ones(
            before in prop::collection::vec(change(), 0..4),
            changes in prop::collection::vec(change(), 0..20),
        ) {
            let (mut one_by_one, now) = (DataAge::default(), Instant::now());
            before.into_iter().for_each(|change| one_by_one.apply(change, now));
            let (mut at_once, mut waiting) = (one_by_one, Vec::new());
            for change in changes {
                one_by_one.apply(change, now);
                change.coalesce(&mut waiting);
                prop_assert!(waiting.len() <= 3);
            }
            waiting.into_iter().for_each(|change| at_once.apply(change, now));
            prop_assert_eq!(at_once, one_by_one);
        }
    }
}
