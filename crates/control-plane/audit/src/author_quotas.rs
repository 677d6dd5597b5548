//! Quotas of authors in the audit log, so that a flood of writes pushes out neither other authors' entries
//! nor the author's earlier ones.

use std::{collections::HashMap, time::Duration};

use fairmesh_identity::sha256;
use fairmesh_model::RecordKind;

use super::{AuditEvent, AuditValue, Draft, entry::hex};

/// Maximum number of bytes of entries with full values, per author and record kind, in one [`PERIOD`].
const MAX_BYTES: usize = 2 << 20;
/// Maximum number of bytes of further entries, which have hashed values. Entries beyond this are only counted.
const MAX_HASHED_BYTES: usize = 4 << 20;
const PERIOD: Duration = Duration::from_secs(3600);
/// Minimum time between two entries that state counts.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of tracked pairs of author and kind. Other authors share one quota per kind.
const MAX_SHARES: usize = 4096;
/// Author name of the shared quota.
const OTHERS: &str = "others";

/// How an entry is logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Logged {
    InFull,
    /// The entry is logged with hashes instead of values.
    Hashed,
    /// The entry is only counted.
    Counted,
}

/// Author and record kind that share a quota. The author's program is left out, since the author could choose its
/// name freely.
type ShareKey = (String, &'static str);

#[derive(Debug, Default)]
struct Share {
    bytes: usize,
    hashed_bytes: usize,
    counted: Counted,
}

/// The entries of a share that were only counted.
#[derive(Debug, Default)]
struct Counted {
    count: u64,
    revision: u64,
    store: String,
    /// Hash over the previous hash and the last counted entry.
    hash: [u8; 32],
    /// Time at which the count was last logged, in milliseconds since 1970.
    logged_ms: u64,
}

/// The shares of all authors in the current period.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    began_ms: u64,
    shares: HashMap<ShareKey, Share>,
}

impl Quotas {
    /// Whether the period is over. The counts must then be taken before the next entry is admitted.
    pub(super) fn is_over(&self, at_ms: u64) -> bool {
        at_ms.abs_diff(self.began_ms) > millis(PERIOD)
    }

    /// Begins the next period.
    pub(super) fn begin(&mut self, at_ms: u64) {
        (self.began_ms, self.shares) = (at_ms, HashMap::new());
    }

    /// Decides how to log an entry with this line. `hashed_line` makes the line with hashed values.
    pub(super) fn admit<E>(
        &mut self,
        draft: &Draft,
        line: &str,
        hashed_line: impl FnOnce() -> Result<String, E>,
    ) -> Result<Logged, E> {
        let mut key = share_key(draft);
        if self.shares.len() >= MAX_SHARES && !self.shares.contains_key(&key) {
            key.0 = OTHERS.into();
        }
        let share = self.shares.entry(key).or_default();
        if share.bytes + line.len() <= MAX_BYTES {
            share.bytes += line.len();
            return Ok(Logged::InFull);
        }
        if share.hashed_bytes < MAX_HASHED_BYTES {
            let bytes = hashed_line()?.len();
            if share.hashed_bytes + bytes <= MAX_HASHED_BYTES {
                share.hashed_bytes += bytes;
                return Ok(Logged::Hashed);
            }
        }
        let counted = &mut share.counted;
        (counted.count, counted.revision, counted.store) =
            (counted.count + 1, draft.revision, draft.store.clone());
        counted.hash = sha256(&[&counted.hash[..], line.as_bytes()].concat());
        Ok(Logged::Counted)
    }

    /// Takes the entries that state counts: those of all authors, or of authors whose last such entry is old enough.
    pub(super) fn take_counted(&mut self, at_ms: u64, all: bool) -> Vec<Draft> {
        let due = |counted: &Counted| {
            counted.count > 0 && (all || at_ms.abs_diff(counted.logged_ms) > millis(SUMMARY_INTERVAL))
        };
        let shares = self.shares.iter_mut().filter(|(_, share)| due(&share.counted));
        let drafts = shares.map(|((who, kind), share)| {
            let Counted { count, revision, store, hash, .. } = std::mem::take(&mut share.counted);
            share.counted.logged_ms = at_ms;
            let event = AuditEvent::Counted { kind: (*kind).to_owned(), count, sha256: hex(&hash) };
            Draft { revision, store, ..Draft::of_event(at_ms, who.clone(), event) }
        });
        drafts.collect()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn share_key(draft: &Draft) -> ShareKey {
    let who = draft.who.split(" for ").next().unwrap_or_default().to_owned();
    let kind = match (&draft.event, draft.changes.first()) {
        (Some(event), _) => event.kind(),
        (None, change) => {
            let kind = change.and_then(|change| RecordKind::of(&change.key));
            kind.map_or("other", RecordKind::group)
        }
    };
    (who, kind)
}

impl Draft {
    /// Returns the entry with hashes of its values.
    pub(super) fn hashed(mut self) -> Self {
        for change in &mut self.changes {
            for value in [&mut change.before, &mut change.after].into_iter().flatten() {
                *value = AuditValue::hash_of(value);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuditChange;

    fn write(who: &str, key: &str) -> Draft {
        let changes = vec![AuditChange { key: key.into(), before: None, after: Some(AuditValue::of(b"v")) }];
        Draft {
            changes,
            ..Draft::of_event(
                0,
                who.into(),
                AuditEvent::Denied { method: String::new(), reason: String::new() },
            )
        }
    }

    #[test]
    fn audit_entries_of_flood_are_hashed_then_counted_within_own_share() {
        let mut quotas = Quotas::default();
        let flood = Draft { event: None, ..write("mallory for x", "/t/shop/policies/cart") };
        let line = "x".repeat(1 << 20);
        let hashed = || Ok::<_, std::convert::Infallible>("x".repeat(1 << 20));
        let mut admit = |draft: &Draft| quotas.admit(draft, &line, hashed).unwrap();
        assert_eq!(
            [admit(&flood), admit(&flood), admit(&flood)],
            [Logged::InFull, Logged::InFull, Logged::Hashed]
        );
        for _ in 1..MAX_HASHED_BYTES >> 20 {
            assert_eq!(admit(&flood), Logged::Hashed);
        }
        let renamed = Draft {
            who: "mallory for y".into(),
            ..Draft { event: None, ..write("", "/t/shop/policies/cart") }
        };
        assert_eq!([admit(&flood), admit(&renamed)], [Logged::Counted, Logged::Counted]);
        let bound = Draft { event: None, ..write("mallory", "/g/roles/all") };
        let other = Draft { event: None, ..write("alice", "/t/shop/policies/cart") };
        assert_eq!([admit(&bound), admit(&other)], [Logged::InFull, Logged::InFull]);
        let counted = quotas.take_counted(1, true);
        assert_eq!((counted.len(), counted[0].who.as_str()), (1, "mallory"));
        assert!(matches!(&counted[0].event, Some(AuditEvent::Counted { count: 2, .. })), "{counted:?}");
        assert!(quotas.take_counted(1, true).is_empty());
    }

    #[test]
    fn known_record_kinds_have_separate_audit_log_shares() {
        let share = |key: &str| share_key(&Draft { event: None, ..write("alice", key) }).1;
        assert_eq!(share("/t/shop/authorizations/cart"), "authorizations");
        assert_eq!(share("/g/drains/eu"), "drains");
        assert_eq!(share("/g/topology/rtt"), "topology");
        assert_eq!(share("/g/identity/agents/web-1"), "identity");
        assert_eq!(share("/t/shop/novelties/cart"), "other", "names of newer kinds make no shares");
    }
}
