//! Watchers that lost their connection. They still use their copies and may reconnect soon.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use fairmesh_model::{Identity, Prefix};
use tokio::time::Instant;

use super::lagging_watcher::BehindWatcher;
use crate::WatcherInfo;

/// Maximum time that a watcher takes to reconnect: the longest backoff plus the time to connect.
pub(super) const RECONNECT_GRACE: Duration = Duration::from_secs(7);

/// Maximum number of remembered prefixes of disconnected watchers. Beyond it, unknown watchers count as disconnected
/// for the grace period.
const MAX_PREFIXES: usize = 524_288;

/// The recently disconnected watchers.
#[derive(Debug, Default)]
pub(super) struct DisconnectedWatchers {
    /// Ordered by time of disconnect.
    watchers: VecDeque<Disconnected>,
    prefixes: usize,
    /// Until when watchers unknown to this node may still be disconnected.
    unknown_until: Option<Instant>,
}

#[derive(Debug)]
struct Disconnected {
    until: Instant,
    prefixes: BTreeSet<Prefix>,
    info: WatcherInfo,
    /// The last acknowledged revision. `info.applied` is greater if the revisions in between changed only other
    /// prefixes.
    acked: u64,
}

impl DisconnectedWatchers {
    /// Assumes that watchers of the previous process are still to reconnect, because the node starts with content.
    pub(super) fn assume_unknown(&mut self, now: Instant) {
        self.unknown_until = Some(now + RECONNECT_GRACE);
    }

    /// Records that a watcher disconnected after it applied revisions up to `info.applied` and acknowledged `acked`.
    pub(super) fn leave(&mut self, prefixes: BTreeSet<Prefix>, info: WatcherInfo, acked: u64, now: Instant) {
        self.expire(now);
        self.prefixes += prefixes.len();
        self.watchers.push_back(Disconnected { until: now + RECONNECT_GRACE, prefixes, info, acked });
        while self.prefixes > MAX_PREFIXES
            && let Some(first) = self.watchers.pop_front()
        {
            self.prefixes -= first.prefixes.len();
            self.unknown_until = self.unknown_until.max(Some(first.until));
        }
    }

    /// Records that a watcher subscribes with a copy of a prefix as of revision `held`. From now on the connected
    /// watcher counts instead.
    ///
    /// Two processes may have the same name. A reconnected watcher is matched with the most advanced candidate that
    /// its copy allows, because no watcher has less than it acknowledged. Candidates that are further behind are
    /// still waited for.
    pub(super) fn reconnected(&mut self, software: &str, identity: &Identity, prefix: &Prefix, held: u64) {
        let same =
            |left: &&mut Disconnected| left.info.software == software && left.info.identity == *identity;
        let can_be = |left: &&mut Disconnected| left.acked <= held && left.prefixes.contains(prefix);
        let furthest = self.watchers.iter_mut().filter(same).filter(can_be).max_by_key(|left| left.acked);
        if furthest.is_some_and(|left| left.prefixes.remove(prefix)) {
            self.prefixes -= 1;
            self.watchers.retain(|left| !left.prefixes.is_empty());
        }
    }

    /// Forgets all revisions, because revision numbers start again.
    pub(super) fn reset(&mut self) {
        self.watchers.iter_mut().for_each(|left| (left.info.applied, left.acked) = (0, 0));
    }

    /// Returns the disconnected watchers of a part of `prefix` that had not applied `revision`.
    pub(super) fn behind(&self, prefix: &Prefix, revision: u64, now: Instant) -> Vec<BehindWatcher> {
        let meets = |other: &Prefix| prefix.covers(other.as_str()) || other.covers(prefix.as_str());
        let late = self.unexpired(now).filter(|left| left.info.applied < revision);
        let late = late.filter(|left| left.prefixes.iter().any(meets));
        let late = late.map(|Disconnected { info, .. }| BehindWatcher::new(info, true));
        late.chain(self.unknown(now).map(|_| BehindWatcher::unknown())).collect()
    }

    /// Returns the revision that every disconnected watcher has applied; `None` if there is no such watcher.
    pub(super) fn least_applied(&self, now: Instant) -> Option<u64> {
        match self.unknown(now) {
            Some(_) => Some(0),
            None => self.unexpired(now).map(|left| left.info.applied).min(),
        }
    }

    /// Returns when the next grace period ends.
    pub(super) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        self.unexpired(now).map(|left| left.until).chain(self.unknown(now)).min()
    }

    fn unexpired(&self, now: Instant) -> impl Iterator<Item = &Disconnected> {
        self.watchers.iter().filter(move |left| left.until > now)
    }

    fn unknown(&self, now: Instant) -> Option<Instant> {
        self.unknown_until.filter(|until| *until > now)
    }

    fn expire(&mut self, now: Instant) {
        while let Some(first) = self.watchers.pop_front_if(|first| first.until <= now) {
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
        WatcherInfo { software: software.into(), identity: Identity::Anonymous, applied, peer: None }
    }

    #[test]
    fn disconnected_watcher_counts_until_it_reconnects_or_its_grace_ends() {
        let (mut disconnected, start) = (DisconnectedWatchers::default(), Instant::now());
        disconnected.leave([prefix("/a/"), prefix("/b/")].into(), info("x", 3), 3, start);
        let late = disconnected.behind(&prefix("/a/1"), 4, start);
        assert_eq!(late[0].to_string(), "x (anonymous) at 3, disconnected");
        assert_eq!((late[0].name.as_str(), late[0].applied), ("x (anonymous)", Some(3)));
        assert!(disconnected.behind(&prefix("/a/"), 3, start).is_empty(), "it had that");
        assert!(disconnected.behind(&prefix("/c/"), 4, start).is_empty(), "it does not follow that");
        disconnected.reconnected("y", &Identity::Anonymous, &prefix("/a/"), 3);
        assert_eq!(disconnected.behind(&prefix("/a/"), 4, start).len(), 1, "another watcher reconnected");
        disconnected.reconnected("x", &Identity::Anonymous, &prefix("/a/"), 3);
        assert!(disconnected.behind(&prefix("/a/"), 4, start).is_empty());
        assert_eq!(
            (disconnected.least_applied(start), disconnected.next_expiry(start)),
            (Some(3), Some(start + RECONNECT_GRACE))
        );
        let given_up = start + RECONNECT_GRACE;
        assert!(disconnected.behind(&prefix("/b/"), 4, given_up).is_empty());
        assert_eq!((disconnected.least_applied(given_up), disconnected.next_expiry(given_up)), (None, None));
    }

    #[test]
    fn reconnected_watcher_does_not_end_grace_of_namesake() {
        let (mut disconnected, now) = (DisconnectedWatchers::default(), Instant::now());
        disconnected.leave([prefix("/a/")].into(), info("x", 3), 3, now);
        // The changes up to revision 9 belong to other prefixes, so the copy is as of revision 5.
        disconnected.leave([prefix("/a/")].into(), info("x", 9), 5, now);
        disconnected.reconnected("x", &Identity::Anonymous, &prefix("/a/"), 5);
        let late = disconnected.behind(&prefix("/a/"), 9, now);
        assert_eq!((late.len(), late[0].applied), (1, Some(3)));
        disconnected.reconnected("x", &Identity::Anonymous, &prefix("/a/"), 2);
        assert_eq!(disconnected.behind(&prefix("/a/"), 9, now).len(), 1, "it acknowledged 3");
        disconnected.reconnected("x", &Identity::Anonymous, &prefix("/a/"), 4);
        assert!(disconnected.behind(&prefix("/a/"), 9, now).is_empty());
    }

    #[test]
    fn unknown_watchers_count_as_disconnected_once_prefix_limit_is_exceeded() {
        let (mut disconnected, now) = (DisconnectedWatchers::default(), Instant::now());
        for i in 0..=MAX_PREFIXES {
            disconnected.leave([prefix(&format!("/{i}/"))].into(), info("x", 3), 3, now);
        }
        assert_eq!(disconnected.prefixes, MAX_PREFIXES);
        let late = disconnected.behind(&prefix("/c/"), 1, now);
        assert_eq!(late[0].to_string(), "watchers from before the start, yet to reconnect");
        assert_eq!(disconnected.least_applied(now), Some(0));
    }
}
