//! Watchers that lost their connection and may be back soon, deciding by what they hold meanwhile.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use fairmesh_model::{Identity, Prefix};
use tokio::time::Instant;

use crate::WatcherInfo;

/// Within which time a watcher that means to return has: the longest wait between its attempts, and time to connect.
pub(super) const RETURN_WITHIN: Duration = Duration::from_secs(7);

/// The most prefixes that are remembered of all who left; beyond it, everybody counts as away for as long.
const MAX_PREFIXES: usize = 524_288;

/// Who left lately.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// In the order in which they left.
    left: VecDeque<Left>,
    prefixes: usize,
    /// Until when anybody may be away whom this node knows nothing of.
    anybody: Option<Instant>,
}

#[derive(Debug)]
struct Left {
    until: Instant,
    prefixes: BTreeSet<Prefix>,
    info: WatcherInfo,
    /// The last number that it said it has applied: `info.applied` is above it where the rest was none of its business.
    acked: u64,
}

impl Absent {
    /// The node starts with a history: who watched it before has yet to find it again.
    pub(super) fn anybody(&mut self, now: Instant) {
        self.anybody = Some(now + RETURN_WITHIN);
    }

    /// A watcher is gone that had applied up to `info.applied` and said so up to `acked`.
    pub(super) fn leave(&mut self, prefixes: BTreeSet<Prefix>, info: WatcherInfo, acked: u64, now: Instant) {
        self.expire(now);
        self.prefixes += prefixes.len();
        self.left.push_back(Left { until: now + RETURN_WITHIN, prefixes, info, acked });
        while self.prefixes > MAX_PREFIXES
            && let Some(first) = self.left.pop_front()
        {
            self.prefixes -= first.prefixes.len();
            self.anybody = self.anybody.max(Some(first.until));
        }
    }

    /// A watcher says that it holds a prefix as of `held`: from now on it counts by itself.
    ///
    /// Two processes may go by one name. One that is back is taken for the furthest that it can be, since nobody holds
    /// less than it said it has applied; whoever is further behind is still waited for.
    pub(super) fn back(&mut self, software: &str, identity: &Identity, prefix: &Prefix, held: u64) {
        let same = |left: &&mut Left| left.info.software == software && left.info.identity == *identity;
        let can_be = |left: &&mut Left| left.acked <= held && left.prefixes.contains(prefix);
        let furthest = self.left.iter_mut().filter(same).filter(can_be).max_by_key(|left| left.acked);
        if furthest.is_some_and(|left| left.prefixes.remove(prefix)) {
            self.prefixes -= 1;
            self.left.retain(|left| !left.prefixes.is_empty());
        }
    }

    /// The numbers of the table start anew.
    pub(super) fn reset(&mut self) {
        self.left.iter_mut().for_each(|left| (left.info.applied, left.acked) = (0, 0));
    }

    /// Who is away and had not applied `revision` of something of `prefix`, for people.
    pub(super) fn behind(&self, prefix: &Prefix, revision: u64, now: Instant) -> Vec<String> {
        let meets = |other: &Prefix| prefix.covers(other.as_str()) || other.covers(prefix.as_str());
        let late = self.away(now).filter(|left| left.info.applied < revision);
        let late = late.filter(|left| left.prefixes.iter().any(meets));
        let late = late.map(|Left { info, .. }| {
            format!("{} ({}) at {}, away", info.software, info.identity, info.applied)
        });
        let unknown = self.unknown(now).map(|_| "whoever has not come back since the start".to_owned());
        late.chain(unknown).collect()
    }

    /// The number that everybody who is away has applied; `None` when nobody is.
    pub(super) fn least_applied(&self, now: Instant) -> Option<u64> {
        match self.unknown(now) {
            Some(_) => Some(0),
            None => self.away(now).map(|left| left.info.applied).min(),
        }
    }

    /// When the next of them no longer counts.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.away(now).map(|left| left.until).chain(self.unknown(now)).min()
    }

    fn away(&self, now: Instant) -> impl Iterator<Item = &Left> {
        self.left.iter().filter(move |left| left.until > now)
    }

    fn unknown(&self, now: Instant) -> Option<Instant> {
        self.anybody.filter(|until| *until > now)
    }

    fn expire(&mut self, now: Instant) {
        while let Some(first) = self.left.pop_front_if(|first| first.until <= now) {
            self.prefixes -= first.prefixes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::new(text).unwrap()
    }

    fn info(software: &str, applied: u64) -> WatcherInfo {
        WatcherInfo { software: software.into(), identity: Identity::Anonymous, applied, about: None }
    }

    #[test]
    fn one_that_left_behind_counts_until_it_is_back_or_given_up() {
        let (mut absent, start) = (Absent::default(), Instant::now());
        absent.leave([prefix("/a/"), prefix("/b/")].into(), info("x", 3), 3, start);
        assert_eq!(absent.behind(&prefix("/a/1"), 4, start), ["x (anonymous) at 3, away"]);
        assert!(absent.behind(&prefix("/a/"), 3, start).is_empty(), "it had that");
        assert!(absent.behind(&prefix("/c/"), 4, start).is_empty(), "none of its business");
        absent.back("y", &Identity::Anonymous, &prefix("/a/"), 3);
        assert_eq!(absent.behind(&prefix("/a/"), 4, start).len(), 1, "somebody else came");
        absent.back("x", &Identity::Anonymous, &prefix("/a/"), 3);
        assert!(absent.behind(&prefix("/a/"), 4, start).is_empty());
        assert_eq!((absent.least_applied(start), absent.next(start)), (Some(3), Some(start + RETURN_WITHIN)));
        let given_up = start + RETURN_WITHIN;
        assert!(absent.behind(&prefix("/b/"), 4, given_up).is_empty());
        assert_eq!((absent.least_applied(given_up), absent.next(given_up)), (None, None));
    }

    #[test]
    fn one_that_is_back_does_not_stand_in_for_another_of_its_name_that_is_behind() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        absent.leave([prefix("/a/")].into(), info("x", 3), 3, now);
        // The rest up to 9 was none of its business, so that it holds what it has as of 5.
        absent.leave([prefix("/a/")].into(), info("x", 9), 5, now);
        absent.back("x", &Identity::Anonymous, &prefix("/a/"), 5);
        assert_eq!(absent.behind(&prefix("/a/"), 9, now), ["x (anonymous) at 3, away"]);
        absent.back("x", &Identity::Anonymous, &prefix("/a/"), 2);
        assert_eq!(absent.behind(&prefix("/a/"), 9, now).len(), 1, "it said that it has 3");
        absent.back("x", &Identity::Anonymous, &prefix("/a/"), 4);
        assert!(absent.behind(&prefix("/a/"), 9, now).is_empty());
    }

    #[test]
    fn more_than_can_be_remembered_make_everybody_count() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        for i in 0..=MAX_PREFIXES {
            absent.leave([prefix(&format!("/{i}/"))].into(), info("x", 3), 3, now);
        }
        assert_eq!(absent.prefixes, MAX_PREFIXES);
        assert_eq!(absent.behind(&prefix("/c/"), 1, now), ["whoever has not come back since the start"]);
        assert_eq!(absent.least_applied(now), Some(0));
    }
}
