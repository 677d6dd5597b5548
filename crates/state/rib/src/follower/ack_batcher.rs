use std::time::Duration;

use fairmesh_model::{Cursor, Revision};
use fairmesh_wire::v1::{WatchRequest, watch_request::Kind};
use tokio::time::Instant;

/// Maximum and minimum delay of an acknowledgement. A later acknowledgement replaces a delayed one. The delay is
/// random, so that a whole fleet does not acknowledge a change at the same moment.
const ACK_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));

/// Schedules the acknowledgements of one connection: within a second, or at once on request.
///
/// Acknowledging each update at once was rejected: reading the acknowledgements was a large part of the cost of a
/// change for ten thousand watchers.
#[derive(Debug, Default)]
pub struct AckBatcher {
    /// The last acknowledgement sent; `None` if the upstream may have ignored it.
    last_sent: Option<Revision>,
    /// Whether any acknowledgement was sent. The first one is sent at once, because the upstream may be waiting for
    /// it after a reconnect.
    sent_any: bool,
    /// Time at which the delayed acknowledgement must be sent.
    due: Option<Instant>,
    /// Latest revision that the upstream asked to acknowledge.
    ack_requested: Option<Revision>,
}

impl AckBatcher {
    /// Records that an update was received. The upstream ignores acknowledgements of revisions that it has not sent.
    /// A reader that is ahead of its upstream acknowledges when it connects, and must repeat that acknowledgement
    /// after the update.
    pub fn update_received(&mut self) {
        self.last_sent = None;
    }

    /// Records that the upstream requests the acknowledgement of `revision`.
    pub fn request_ack(&mut self, revision: Revision) {
        self.ack_requested = Some(revision);
    }

    /// Returns the acknowledgement of `applied` if it is due, and counts it as sent. Otherwise [`AckBatcher::due`]
    /// returns when to call this again, unless more is applied or received earlier. `random` may be any number.
    pub fn take(&mut self, applied: Revision, now: Instant, random: u64) -> Option<WatchRequest> {
        if self.last_sent == Some(applied) {
            // The delayed acknowledgement was sent already.
            self.due = None;
            return None;
        }
        let (longest, shortest) = ACK_DELAY;
        let span = u64::try_from((longest - shortest).as_nanos()).unwrap_or(u64::MAX);
        let due = *self.due.get_or_insert_with(|| now + shortest + Duration::from_nanos(random % span));
        let waited_for = self.ack_requested.is_some_and(|ack_requested| ack_requested.store == applied.store);
        if self.sent_any && !waited_for && now < due {
            return None;
        }
        (self.last_sent, self.sent_any, self.due) = (Some(applied), true, None);
        if self
            .ack_requested
            .is_some_and(|ack_requested| ack_requested.number <= applied.number || !waited_for)
        {
            self.ack_requested = None;
        }
        Some(WatchRequest { kind: Some(Kind::Applied(Cursor::at(applied).into())) })
    }

    /// Returns when the delayed acknowledgement is due; `None` if none is delayed.
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

    fn sends(acks: &mut AckBatcher, applied: Revision, now: Instant, random: u64) -> bool {
        acks.take(applied, now, random).is_some()
    }

    #[test]
    fn revision_acknowledgements_are_batched_for_up_to_one_second() {
        let (mut acks, start) = (AckBatcher::default(), Instant::now());
        assert!(sends(&mut acks, at(1), start, 0), "the first goes at once");
        assert!(!sends(&mut acks, at(1), start, 0), "sent once is enough");
        assert_eq!(acks.due(), None);
        let mut sent = 0;
        for step in 1..=1000_u64 {
            acks.update_received();
            let now = start + Duration::from_millis(10 * step);
            let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sent += u32::from(sends(&mut acks, at(1 + step), now, random));
            assert!(acks.due().is_none_or(|due| due > now && due <= now + ACK_DELAY.0));
        }
        assert!((10..=20).contains(&sent), "{sent} acknowledgements in 10 s of an update every 10 ms");
    }

    #[test]
    fn requested_acknowledgements_are_sent_at_once_up_to_revision() {
        let (mut acks, now) = (AckBatcher::default(), Instant::now());
        assert!(sends(&mut acks, at(1), now, 0));
        assert!(!sends(&mut acks, at(2), now, 0), "held back");
        acks.request_ack(at(4));
        assert!(sends(&mut acks, at(2), now, 0), "what was held back goes");
        assert_eq!(acks.due(), None);
        assert!(sends(&mut acks, at(4), now, 0));
        assert!(!sends(&mut acks, at(5), now, 0), "not requested");
        assert!(sends(&mut acks, at(5), now + ACK_DELAY.0, 0));
    }

    #[test]
    fn unchanged_revision_is_acknowledged_again_after_update() {
        let (mut acks, now) = (AckBatcher::default(), Instant::now());
        assert!(sends(&mut acks, at(7), now, 0));
        acks.update_received();
        assert!(!sends(&mut acks, at(7), now, 0) && sends(&mut acks, at(7), now + ACK_DELAY.0, 0));
    }

    #[test]
    fn acknowledgement_request_of_another_store_is_ignored() {
        let (mut acks, now) = (AckBatcher::default(), Instant::now());
        assert!(sends(&mut acks, at(1), now, 0));
        acks.request_ack(Revision { store: StoreId(2), ..at(9) });
        assert!(!sends(&mut acks, at(2), now, 0));
    }

    #[test]
    fn no_acknowledgement_is_due_after_returning_to_acknowledged_revision() {
        let (mut acks, now) = (AckBatcher::default(), Instant::now());
        assert!(sends(&mut acks, at(10), now, 0));
        assert!(!sends(&mut acks, at(0), now, 0), "held back");
        assert!(acks.due().is_some());
        assert!(!sends(&mut acks, at(10), now, 0), "sent before");
        assert_eq!(acks.due(), None, "a due time in the past would end every wait at once");
    }
}
