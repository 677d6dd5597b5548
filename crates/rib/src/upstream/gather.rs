use std::time::Duration;

use fairmesh_model::{Cursor, Revision};
use fairmesh_wire::v1::{WatchRequest, watch_request::Kind};
use tokio::time::Instant;

/// How long an acknowledgement is held back at most, for later ones to take its place, and at least. Between them it is a
/// matter of luck, so that a change to all is not acknowledged by all at one moment.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));

/// When to acknowledge over one connection: within a second, and at once where somebody waits.
///
/// To acknowledge each update at once was rejected: of what a change to ten thousand costs, reading their answers was a large part.
#[derive(Debug, Default)]
pub struct Gather {
    /// What was said last, as long as it counts.
    said: Option<Revision>,
    /// Whether anything was. The first acknowledgement goes at once: with one that returns, somebody may have waited for that.
    greeted: bool,
    /// When what is held back goes.
    due: Option<Instant>,
    /// Up to where somebody waits.
    hurried: Option<Revision>,
}

impl Gather {
    /// An update has come. What is acknowledged before it was sent does not count with the sender: a reader that holds more
    /// than its upstream does so when it connects, and must say it again once it is sent.
    pub fn noted(&mut self) {
        self.said = None;
    }

    /// Somebody waits for `revision`.
    pub fn hurry(&mut self, revision: Revision) {
        self.hurried = Some(revision);
    }

    /// The acknowledgement of `applied`, if it goes now. It is taken for said then; else [`Gather::due`] tells when to ask again,
    /// if that is before more is applied or heard. `random` is any number.
    pub fn take(&mut self, applied: Revision, now: Instant, random: u64) -> Option<WatchRequest> {
        if self.said == Some(applied) {
            // What was held back between is said already: nothing is due.
            self.due = None;
            return None;
        }
        let (longest, shortest) = HOLD;
        let span = u64::try_from((longest - shortest).as_nanos()).unwrap_or(u64::MAX);
        let due = *self.due.get_or_insert_with(|| now + shortest + Duration::from_nanos(random % span));
        let waited_for = self.hurried.is_some_and(|hurried| hurried.store == applied.store);
        if self.greeted && !waited_for && now < due {
            return None;
        }
        (self.said, self.greeted, self.due) = (Some(applied), true, None);
        if self.hurried.is_some_and(|hurried| hurried.number <= applied.number || !waited_for) {
            self.hurried = None;
        }
        Some(WatchRequest { kind: Some(Kind::Applied(Cursor::at(applied).into())) })
    }

    /// When what is held back goes; `None` while nothing is.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::StoreId;

    use super::*;

    fn at(number: u64) -> Revision {
        Revision { store: StoreId(1), partition: 0, number }
    }

    fn sends(acks: &mut Gather, applied: Revision, now: Instant, random: u64) -> bool {
        acks.take(applied, now, random).is_some()
    }

    #[test]
    fn acknowledgements_are_gathered_for_up_to_a_second() {
        let (mut acks, start) = (Gather::default(), Instant::now());
        assert!(sends(&mut acks, at(1), start, 0), "the first goes at once");
        assert!(!sends(&mut acks, at(1), start, 0), "said once is enough");
        assert_eq!(acks.due(), None);
        let mut said = 0;
        for step in 1..=1000_u64 {
            acks.noted();
            let now = start + Duration::from_millis(10 * step);
            let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            said += u32::from(sends(&mut acks, at(1 + step), now, random));
            assert!(acks.due().is_none_or(|due| due > now && due <= now + HOLD.0));
        }
        assert!((10..=20).contains(&said), "{said} acknowledgements in 10 s of an update every 10 ms");
    }

    #[test]
    fn whoever_waits_hears_at_once_until_it_has_what_it_waits_for() {
        let (mut acks, now) = (Gather::default(), Instant::now());
        assert!(sends(&mut acks, at(1), now, 0));
        assert!(!sends(&mut acks, at(2), now, 0), "held back");
        acks.hurry(at(4));
        assert!(sends(&mut acks, at(2), now, 0), "what was held back goes");
        assert_eq!(acks.due(), None);
        assert!(sends(&mut acks, at(4), now, 0));
        assert!(!sends(&mut acks, at(5), now, 0), "nobody waits for that");
        assert!(sends(&mut acks, at(5), now + HOLD.0, 0));
    }

    #[test]
    fn what_was_acknowledged_before_it_was_sent_is_acknowledged_again_after() {
        let (mut acks, now) = (Gather::default(), Instant::now());
        assert!(sends(&mut acks, at(7), now, 0));
        acks.noted();
        assert!(!sends(&mut acks, at(7), now, 0) && sends(&mut acks, at(7), now + HOLD.0, 0));
    }

    #[test]
    fn a_wait_at_another_store_hurries_nobody() {
        let (mut acks, now) = (Gather::default(), Instant::now());
        assert!(sends(&mut acks, at(1), now, 0));
        acks.hurry(Revision { store: StoreId(2), ..at(9) });
        assert!(!sends(&mut acks, at(2), now, 0));
    }

    #[test]
    fn nothing_is_due_once_what_was_said_last_holds_again() {
        let (mut acks, now) = (Gather::default(), Instant::now());
        assert!(sends(&mut acks, at(10), now, 0));
        assert!(!sends(&mut acks, at(0), now, 0), "held back");
        assert!(acks.due().is_some());
        assert!(!sends(&mut acks, at(10), now, 0), "said before");
        assert_eq!(acks.due(), None, "whoever waits for what is due would wait for ever, or never");
    }
}
